"""Which modules are wrong by themselves: B's modules are run alone, each with what A's was given.

Two runs that differ early differ everywhere behind that place. A replay takes both away, what was inherited and what adds up: every
paired module of B is called with the inputs that were recorded of A, and where it calls another paired module, its code goes on with what A's
returned. So what is held against A's is the error of one module's own code. The same backwards: each piece of code is handed A's gradients.

* `recorded`: what A recorded of a step. `partners`: which module of A is which of B. `slots`: which tensor is which.
* `traversal`: B's modules run. `segments`: the code between two calls, forward and backward. `writing`: the results, as a recording.
* `keeping`: B is left as it was. `weights`: A's weights in B.
* `limits`, `judging`: what of it is more than rounding, in steps, rows and findings of `probe.verdict`. `run`: all of it together.
"""
