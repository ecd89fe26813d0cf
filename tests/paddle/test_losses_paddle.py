"""Which loss functions made a loss: PaddlePaddle's autograd tells it."""

import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

import probe
from probe.store.reader import Reader


def ctc(logits):
    lengths = paddle.to_tensor([6, 6]), paddle.to_tensor([2, 2])
    return F.ctc_loss(F.log_softmax(logits, -1), paddle.ones([2, 2], "int32"), *lengths)


@pytest.mark.parametrize(
    ("loss_of", "names"),
    [(ctc, ["Warpctc"]), (lambda z: F.cross_entropy(z, paddle.zeros([6, 2], "int64")), ["CrossEntropyWithSoftmax"])],
    ids=["ctc", "cross entropy"],
)
def test_it_is_recorded(loss_of, names, tmp_path):
    model = nn.Linear(3, 5)
    with probe.capture(model, tmp_path / "a.h5"):
        loss = 0.5 * loss_of(model(paddle.ones([6, 2, 3])))
        loss.backward()
        probe.step(loss=loss)
    assert Reader(tmp_path / "a.h5").listed("loss_functions") == names
