"""The mutations: which promise each breaks, by which patch, and the test that must fail then."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One text in one file replaced by another."""

    name: str
    promise: str
    """number and words of `PROMISES`"""
    path: str
    old: str
    """occurs exactly once in the file"""
    new: str
    test: str
    """node id of the test that must fail"""


SAME = "1 the training is bitwise the same"
FAILS = "2 nothing that trains without probe fails with it"
SAID = "3 what could not be recorded is said once, and is in the file"
HOOKS = "4 every hook is taken off"
MEMORY = "5 memory is bounded, no tensor is kept"
FILE = "6 every complete step in the file can be read"
VALUES = "7 what is recorded is what was there"

NEUTRAL = "tests/torch/test_neutral.py::"
RECORDED = NEUTRAL + "test_a_recorded_training_is_bitwise_the_same"
FAULTS = "tests/test_training_faults.py::"
STORE = "tests/test_store_faults.py::"
INTERRUPTS = "tests/test_interrupts.py::test_an_interrupt_anywhere_in_probe"
TOYS = "tests/test_adapter_numpy.py::TestNumpyAdapter::"
PARTS = "probe/recorder/"
RUN, RECORDER, UPDATES = PARTS + "run.py", PARTS + "recorder.py", PARTS + "updates.py"
TORCH = "probe/adapters/torch.py"
WRITER, QUEUE, DISK = "probe/store/writer.py", "probe/store/queue.py", "probe/store/disk.py"

MUTATIONS = (
    Mutation("a hook returns another output", SAME, TORCH,
             "            self._call(output, output is None and _raised())\n",
             "            self._call(output, output is None and _raised())\n"
             "            return output * (1 + 1e-7) if isinstance(output, torch.Tensor) else None\n",
             RECORDED + "[mlp-statistics-any_optimizer]"),
    Mutation("a hook draws a random number", SAME, TORCH,
             "            self._call(args, kwargs)\n",
             "            self._call(args, kwargs)\n            torch.rand(())\n",
             RECORDED + "[mlp-statistics-any_optimizer]"),
    Mutation("a gradient is changed", SAME, TORCH,
             "        return tensor.register_hook(found).remove if tensor.requires_grad else None\n",
             "        return tensor.register_hook(lambda g: found(g) or g * (1 + 1e-7)).remove "
             "if tensor.requires_grad else None\n",
             RECORDED + "[mlp-statistics-any_optimizer]"),
    Mutation("an exception leaves a hook", FAILS, RUN,
             '                run.note(f"not recorded because of an error inside probe: {error!r}", -1)\n',
             "                raise RuntimeError from error\n            except RuntimeError:\n                raise\n",
             "tests/test_recorder.py::test_what_an_output_raises_when_it_is_looked_at_does_not_reach_the_training"),
    Mutation("warnings that are errors leave a hook", FAILS, RUN,
             "            except Exception:  # noqa: BLE001  no room on the stack, warnings that are errors\n",
             "            except ZeroDivisionError:\n",
             "tests/test_recorder.py::test_warnings_that_are_errors_do_not_reach_the_training_either"),
    Mutation("an error inside step reaches the training", FAILS, RECORDER,
             "            except Exception as error:  # noqa: BLE001  the training must go on\n"
             "                return self._give_up(",
             "            except ZeroDivisionError:\n                raise\n"
             "            except Exception as error:\n                return self._give_up(",
             FAULTS + "test_an_error_inside_step_ends_the_recording_and_not_the_training"),
    Mutation("a note is dropped", SAID, RUN,
             "            self.notes.append((self.step, module, text))\n",
             "            pass\n",
             FAULTS + "test_a_step_before_the_update_is_told"),
    Mutation("a note is said every time", SAID, RUN,
             "        if text and text not in self._said:\n            self._said.add(text)\n            warn(text)\n",
             "        if text:\n            warn(text)\n",
             FAULTS + "test_messages_that_differ_each_time_do_not_pile_up"),
    Mutation("new modules are passed over", SAID, PARTS + "contents.py",
             "                modules += self._new_modules(prefix, model)\n",
             "                self._new_modules(prefix, model)\n",
             FAULTS + "test_models_of_a_list_are_looked_at_each"),
    Mutation("deep containers are dropped silently", SAID, "probe/slots.py",
             '        missed.append((slot or "0", value))\n',
             "        pass\n",
             FAULTS + "test_deep_nesting_is_told"),
    Mutation("an unfinished update is passed over", SAID, RECORDER,
             "        self._updates.end_step()\n        now",
             "        now",
             FAULTS + "test_an_exception_that_the_training_catches[optimizer]"),
    Mutation("handles are forgotten at stop", HOOKS, PARTS + "hooks.py",
             "        for removal in [*self._removals, *self._removals_of_step]:\n",
             "        for removal in self._removals[1:]:\n",
             FAULTS + "test_an_error_inside_stop_ends_the_recording_and_not_the_training"),
    Mutation("an interrupted stop leaves hooks", HOOKS, RECORDER,
             "        try:\n            self._end_once()\n        finally:\n            self._end_once()\n",
             "        self._end_once()\n",
             INTERRUPTS + "[stop]"),
    Mutation("the queue is unbounded", MEMORY, QUEUE,
             "        while self._put - self._taken > self.limit and len(self._items) > 1 and not self._closed:\n",
             "        while False:\n",
             STORE + "test_a_slow_writer_makes_the_producer_wait"),
    Mutation("the recorder keeps tensors", MEMORY, PARTS + "measuring.py",
             "        self._seen[id(tensor)] = (weakref.ref(tensor), version, stats)\n",
             "        self._seen[id(tensor)] = (lambda: tensor, version, stats)\n",
             NEUTRAL + "test_tensors_are_freed_as_soon_as_the_training_lets_go_of_them[False-statistics]"),
    Mutation("logged numbers are kept after the end", MEMORY, RECORDER,
             "        if self.run.running and self.run.active:\n            self._scalars",
             "        if self.run.active:\n            self._scalars",
             FAULTS + "test_what_is_logged_after_the_end_is_not_kept"),
    Mutation("an existing file is overwritten", FILE, DISK,
             "os.O_RDWR | os.O_CREAT | os.O_EXCL", "os.O_RDWR | os.O_CREAT | os.O_TRUNC",
             "tests/test_store.py::test_an_existing_file_is_never_overwritten"),
    Mutation("nothing is committed at the end of a step", FILE, WRITER,
             "        self._file.flush()\n        self._disk.commit()\n\n    def _finish",
             "\n    def _finish",
             STORE + "test_a_process_that_ends_in_the_middle_of_a_step[os._exit(3)-3]"),
    Mutation("a forked child writes", FILE, DISK,
             "        return not self._frozen and os.getpid() == self._process\n",
             "        return not self._frozen\n",
             "tests/test_disk.py::test_a_forked_process_writes_nothing"),
    Mutation("writing goes on after a write error", FILE, DISK,
             "        self.error, self._frozen = error, True\n",
             "        self.error = error\n",
             "tests/test_disk.py::test_after_a_failure_everything_is_held"),
    Mutation("rows that may be torn are written", FILE, WRITER,
             "        if self._torn:\n", "        if False:\n",
             INTERRUPTS + "[hooks]"),
    Mutation("values are read after the hook", VALUES, "probe/adapters/numpy.py",
             '        return np.array(tensor.data, order="C")\n',
             "        return np.asarray(tensor.data)\n",
             TOYS + "test_copies_are_isolated"),
    Mutation("equality is decided without the version", VALUES, PARTS + "measuring.py",
             "known[0]() is tensor and known[1] == version:", "known[0]() is tensor:",
             "tests/test_recorder.py::test_a_tensor_that_was_not_written_to_is_measured_once"),
    Mutation("parameters are not read again", VALUES, PARTS + "measuring.py",
             "if self._reuses and not fresh else None", "if self._reuses else None",
             "tests/test_recorder.py::test_parameters_are_always_read"),
    Mutation("a replaced parameter is recorded as it was", VALUES, PARTS + "measuring.py",
             "        if index in run.gone or", "        if",
             FAULTS + "test_a_parameter_that_was_replaced_is_not_recorded_any_more"),
)  # fmt: skip
