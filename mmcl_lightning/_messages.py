"""What a user reads when something goes wrong: the sentence that says what, and nothing around it."""

from __future__ import annotations

import errno
import importlib.util
import logging
import os
import pickle
import re
import shutil
import sysconfig
import tempfile
import threading
import traceback
import warnings
from pathlib import Path

from mmcl_lightning._text import plain, plain_lines
from mmcl_lightning.errors import MMCLError

__all__ = ["filter_warnings", "plain_message"]

#: Kinds of errors that are about what Lightning was given, where Lightning itself raises them.
_COMPLAINTS = {
    "MisconfigurationException",
    "ValueError",
    "TypeError",
    "RuntimeError",
    "OSError",
    "ImportError",
}

#: Parts of what Lightning prints without need.
_NEEDLESS = ("Tip: For seamless cloud", "Loading `train_data", "TPU available: False")
#: A full disk, and a full share of one.
_NO_SPACE = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
#: Where code lies that is not somebody's own: this package, installed ones, Python's library.
_PATHS = sysconfig.get_paths()
_HERE = str(Path(__file__).parent) + os.sep
_KNOWN = (_HERE, *(_PATHS[name] for name in ("purelib", "platlib", "stdlib")), "<frozen")


def plain_message(error: BaseException) -> str | None:
    """Message of an error that the user can mend, or ``None`` for one that needs its traceback."""
    cause: BaseException | None = error
    while cause is not None:  # jsonargparse wraps what a constructor raises
        if isinstance(cause, MMCLError):
            text = str(cause)
            # From a worker of a loader the text is the worker's whole traceback, the message last.
            return text.rpartition(f"{type(cause).__name__}: ")[2].strip() if "\nTraceback" in text else text
        cause = cause.__cause__
    chain = _chain(error)
    for part in chain:  # whose fault it is not, wherever it happens
        if isinstance(part, OSError) and part.errno in _NO_SPACE:
            return _no_space(part)
        if killed := re.search(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (.*)", str(part)):
            return _worker_lost(killed[1], killed[2])
    if "OutOfMemoryError" in {kind.__name__ for kind in type(error).__mro__}:  # torch's, not imported here
        return _gpu_full(error)
    places = [frame.filename for part in chain for frame in traceback.extract_tb(part.__traceback__)]
    if not all(place.startswith(_KNOWN) for place in places):
        return None  # somebody's own code is involved, and has to be found
    if chain[1:] and str(error).startswith(("Does not validate", "Problem with given class_path")):
        return f"{_option(error)}{' '.join(str(chain[-1]).split())}"  # a constructor that jsonargparse called
    places = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if str(error).startswith("No supported gpu backend found"):
        return "torch finds no GPU: set --trainer.accelerator to cpu or auto, or look at the driver"
    if narrow := re.search(r"\"(\w+)\" not implemented for '(BFloat16|Half)'", str(error)):
        return f"{narrow[1]} cannot be computed in {narrow[2]} on this device: use a precision of 32-true"
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.strerror}: {error.filename}"
    if isinstance(error, pickle.UnpicklingError):  # of a remote checkpoint, which Lightning reads
        return (
            "the checkpoint is damaged, or holds more than tensors and plain data, which can run code: if "
            "you trust it, set --weights_only false"
        )
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & _COMPLAINTS and places[-1].startswith(_folder("lightning")):  # a check of what it was given
        return " ".join(str(error).split())
    return None


def _no_space(error: OSError) -> str:
    """Name the file and its disk; without a file, the disks that may be meant."""
    places = [error.filename] if error.filename else [os.curdir, tempfile.gettempdir()]
    disks = []
    for place in places:
        folder = Path(os.fsdecode(place)).absolute()
        while not folder.exists():
            folder = folder.parent
        usage = shutil.disk_usage(folder)
        disks.append(f"{place} lies on a disk with {usage.free / 1e6:.0f} of {usage.total / 1e6:.0f} MB free")
    return (
        f"{error.strerror}: {' and '.join(disks)}. Make room, or write elsewhere: runs go to "
        "--trainer.logger.save_dir, temporary files to TMPDIR. Checkpoints that were there are whole"
    )


def _gpu_full(error: BaseException) -> str:
    """Say what needs less memory, and how much torch asked for."""
    asked = re.search(r"Tried to allocate [\d.]+ \w+", str(error))
    return (
        f"the memory of the GPU is full{f' ({asked[0]})' if asked else ''}: give a smaller --data.batch_size "
        "or a precision of bf16-mixed; in pretraining, keep the batch and pass it through the network in "
        "parts, --model.chunk_size"
    )


def _worker_lost(process: str, reason: str) -> str:
    """Say what most likely ended a worker of a loader."""
    signal = re.search(r"killed by signal: ([\w ]+)", reason)
    how = f"was killed ({signal[1]})" if signal else "ended without a word"
    shared = signal is not None and signal[1] == "Bus error"
    what = "shared memory, /dev/shm, is full" if shared else "memory runs out"
    return (
        f"a worker of the data loader, process {process}, {how}, as the system does when {what}: give fewer "
        "--data.num_workers, a smaller --data.batch_size, or more memory"
    )


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error and those that led to it, the first one last."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    return chain


def _option(error: BaseException) -> str:
    """Name the option whose object could not be built, and the object's class."""
    frames = [frame for part in _chain(error) for frame, _ in traceback.walk_tb(part.__traceback__)]
    options = [frame.f_locals["component"] for frame in frames if "component" in frame.f_locals]
    names = [option.dest for option in options if isinstance(getattr(option, "dest", None), str)]
    built = [frame.f_locals["self"] for frame in frames if frame.f_code.co_name == "__init__"]
    first = [f"{type(part).__name__}: " for part in built if not type(part).__name__.endswith("CLI")]
    return "".join([*(f"{name}: " for name in names[-1:]), *first[:1]])


def _folder(package: str) -> str:
    """Return where a package lies, without importing it."""
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parent)


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    """Leave a full disk, which TensorBoard's thread meets first, to the process: it says so in a sentence."""
    if not (isinstance(ended.exc_value, OSError) and ended.exc_value.errno in _NO_SPACE):
        threading.__excepthook__(ended)


def filter_warnings() -> None:
    """Silence what a run prints without need, such as advertisements; show our own warnings as sentences."""
    threading.excepthook = _thread_ended
    warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
    warnings.filterwarnings("ignore", message="LightningCLI's args parameter")  # main([...]) in a notebook
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")  # torch_geometric's import
    warnings.filterwarnings("ignore", message="The dirpath has changed")  # every resume gets a new folder
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # `fit` says it, with the option
    # Of a checkpoint of an earlier version, whose callbacks Readouts takes up; of others it is worth reading.
    earlier = "OnlineKNN|OnlineLinearProbe|HealthPanel|LogisticReadout|SupportVectorGrid"
    missing = rf".*Please add the following callbacks: \[('({earlier})'(, )?)+\]"
    warnings.filterwarnings("ignore", message=missing)
    warnings.filterwarnings("ignore", message=r"Found \d+ module\(s\) in eval mode")  # a frozen backbone
    warnings.filterwarnings("ignore", message=".*this fit will run with no optimizer")  # as it should
    warnings.formatwarning = _format_warning
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    for change in (_no_tip, _plain_record):
        if change not in logger.filters:
            logger.addFilter(change)


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Our own warnings as sentences; those of others with their place, as usual."""
    if filename.startswith(_HERE):
        return f"warning: {plain(message)}\n"
    return f"{filename}:{lineno}: {plain_lines(message)}\n"


def _no_tip(record: logging.LogRecord) -> bool:
    """Whether a message of Lightning is worth printing."""
    return not any(text in record.getMessage() for text in _NEEDLESS)


def _plain_record(record: logging.LogRecord) -> bool:
    """Let what ``rank_zero_info`` prints steer no terminal; see :func:`~mmcl_lightning._text.say`."""
    record.msg, record.args = plain_lines(record.getMessage()), ()
    return True
