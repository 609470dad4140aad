"""Public: what Lightning needs to resume in the middle of an epoch with other ranks or another batch size."""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer

from .errors import ConfigError
from .loader.loader import Loader


class ResumeElastically(Callback):
    """Has Lightning count the steps of a resumed epoch as its Loader does.

    A checkpoint holds how many steps Lightning has taken of its epoch. With another number of ranks or another batch
    size, the rest of the epoch has another number of steps. Without this callback Lightning then ends the resumed epoch
    early, or without its validation, although the Loader delivers the right samples. With the callback it takes the
    steps that are left, and validates at the epoch's end. It changes nothing where the numbers agree.

    Give it to `Trainer(callbacks=[...])`. If less than a global batch was left of the epoch, training resumes with the
    next one. Needs Lightning 2.5 or newer, and one Loader as `train_dataloader`: it raises ConfigError for anything
    else, if a run resumes in the middle of an epoch.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set Lightning's counters, after it has loaded the checkpoint and asked the Loader for an iterator."""
        fit = trainer.fit_loop
        if not fit.restarting:  # a new run, or one that resumes at an epoch's end
            return
        loader = trainer.train_dataloader
        if not isinstance(loader, Loader):
            raise ConfigError(f"ResumeElastically needs one shardio.Loader as train_dataloader, got {loader!r}")
        loader.batch_sampler.counted()
        batches, steps = fit.epoch_loop.batch_progress, int(trainer.num_training_batches)
        if batches.is_last_batch:
            taken = steps  # Lightning itself ends the epoch if it finds all of its steps taken
        else:
            over = loader.epoch > trainer.current_epoch
            taken = steps if over else min(steps, len(loader) - loader.steps_left)
            if taken == steps:
                fit.epoch_progress.increment_processed()
                fit.epoch_progress.increment_completed()
                taken = 0
        # In a checkpoint of ModelCheckpoint(every_n_train_steps=...) Lightning has yet to count the last step as done.
        completed = taken - fit.epoch_loop.restarted_on_train_batch_end
        counts = {"ready": taken, "started": taken, "processed": taken, "completed": completed}
        batches.current.load_state_dict(counts)
