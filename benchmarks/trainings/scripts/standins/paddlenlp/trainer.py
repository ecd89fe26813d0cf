"""A Trainer that calls callbacks as PaddleNLP's does: which events, in which order, with which arguments (its trainer_callback.py)."""

from types import SimpleNamespace

import paddle

EVENTS = (
    "init_end", "train_begin", "train_end", "epoch_begin", "epoch_end", "step_begin", "load_data_end", "optimizer_begin", "optimizer_end",
    "substep_end", "step_end", "evaluate", "save", "log", "prediction_step",
)  # fmt: skip


class TrainerCallback:
    """What callbacks inherit from: every event does nothing."""


for _event in EVENTS:
    setattr(TrainerCallback, f"on_{_event}", lambda self, args, state, control, **kwargs: None)


class TrainingArguments(SimpleNamespace):
    """Options by their names."""


class Trainer:
    """Trains a model that returns its loss first, by AdamW with a learning rate that falls to 0."""

    def __init__(self, model, args, train_dataset, eval_dataset, callbacks):
        self.model, self.args, self.callbacks = model, args, callbacks
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.lr_scheduler = paddle.optimizer.lr.PolynomialDecay(args.learning_rate, args.max_steps, 0.0)
        self.optimizer = paddle.optimizer.AdamW(self.lr_scheduler, parameters=model.parameters())
        self.state = SimpleNamespace(global_step=0)
        self.call("init_end")

    def call(self, event, **kwargs):
        control = SimpleNamespace()
        known = {"model": self.model, "tokenizer": None, "optimizer": self.optimizer, "lr_scheduler": self.lr_scheduler}
        for each in self.callbacks:
            method = getattr(each, f"on_{event}")
            method(self.args, self.state, control, **known, train_dataloader=None, eval_dataloader=None, **kwargs)

    def train(self):
        self.call("train_begin")
        self.call("epoch_begin")
        every = self.args.gradient_accumulation_steps
        loader = paddle.io.DataLoader(self.train_dataset, batch_size=self.args.per_device_train_batch_size)
        for index, inputs in enumerate(loader):
            self.call("load_data_end", inputs=inputs)
            if index % every == 0:
                self.call("step_begin")
            self.model.train()
            (self.model(**inputs)[0] / every).backward()
            if (index + 1) % every:
                self.call("substep_end")
                continue
            self.call("optimizer_begin", scaler=None)
            self.optimizer.step()
            self.lr_scheduler.step()
            self.optimizer.clear_grad()
            self.call("optimizer_end", scaler=None)
            self.state.global_step += 1
            self.call("step_end")
            self.evaluate()
        self.call("epoch_end")
        self.call("train_end")

    def evaluate(self):
        self.model.eval()
        with paddle.no_grad():
            for inputs in paddle.io.DataLoader(self.eval_dataset, batch_size=self.args.per_device_eval_batch_size):
                self.model(**inputs)
                self.call("prediction_step")
        self.call("evaluate", metrics={})
