"""Log-probabilities of a trainer and of a rollout engine, token by token: `check_logprobs`."""

from probe.checks.logprobs.checking import LogProbs, check_logprobs

__all__ = ["LogProbs", "check_logprobs"]
