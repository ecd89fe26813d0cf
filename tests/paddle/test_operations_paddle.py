"""Operations of PaddlePaddle: what is replaced while a model runs is put back, and other threads are not looked at."""

from __future__ import annotations

import threading

import paddle
import paddle.nn.functional as F
import pytest

import probe


class Net(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.fails = paddle.nn.Linear(4, 4), False

    def forward(self, x):
        if self.fails:
            raise KeyboardInterrupt
        h = F.softmax(self.inner(x) * 0.5, axis=-1).reshape([-1, 2, 4])
        h = h.clone()
        h[0] = 1.0
        return paddle.matmul(h, h.transpose([0, 2, 1])) + 1e-6


def functions() -> tuple[object, ...]:
    return F.softmax, paddle.matmul, paddle.Tensor.reshape, paddle.Tensor.__add__, paddle.Tensor.__getitem__


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    probe.stop()


def test_functions_and_methods_are_recorded_and_put_back() -> None:
    before, net = functions(), Net()
    probe.start(net, "a.h5", level="mix", quiet=True)
    net(paddle.ones([4, 4])).sum().backward()
    probe.step()
    probe.stop()
    assert functions() == before
    found = {each.path: each for each in probe.open("a.h5").modules if each.is_operation}
    wanted = {"inner/linear.0", *(f"/{name}.0" for name in "softmax mul reshape setitem transpose matmul add".split())}
    assert wanted <= found.keys() and not any("mean" in path or "sum" in path for path in found)
    assert found["/softmax.0"].file == __file__ and found["/softmax.0"].arguments == '{"axis": -1}'
    inner = next(each for each in probe.open("a.h5").modules if each.path == "inner")
    assert inner.called_from == f"{__file__}:{found['/softmax.0'].line}"


def test_an_interrupt_leaves_nothing_replaced_and_threads_are_apart() -> None:
    before, net, seen = functions(), Net(), []
    net.register_forward_pre_hook(lambda *_: seen.append(in_a_thread()))
    probe.start(net, "a.h5", level="mix", quiet=True)
    net(paddle.ones([4, 4]))
    probe.step()
    net.fails = True
    with pytest.raises(KeyboardInterrupt):
        net(paddle.ones([4, 4]))
    probe.stop()
    assert functions() == before and seen == [1.0, 1.0]
    assert "/sin.0" not in {each.path for each in probe.open("a.h5").modules}


def in_a_thread() -> float:
    """Return the cosine of 0, computed in a thread of its own."""
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(float(paddle.cos(paddle.sin(paddle.zeros([1]))))))
    thread.start()
    thread.join()
    return found[0]
