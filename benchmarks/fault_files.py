"""Read files and records of strangers by every way in, and count what gets through; write and read weights.

A hostile checkpoint makes a folder when it is unpickled: a way in is counted as safe if it ends in one
sentence, and no folder is there. A record of a run has markup, terminal escapes and numbers of any size at
every place at which a value stands, one at a time.

Writes its sections of ``docs/results/faults.md``.
"""

from __future__ import annotations

import argparse
import copy
import functools
import http.server
import io
import json
import os
import pickle
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torchvision
from common import ROOT, table
from fault_runs import RUN, write
from torch import nn
from use_cases.cases import tree, within

from mmcl_lightning.cli import main
from mmcl_lightning.errors import MMCLError
from mmcl_lightning.models import build_backbone
from mmcl_lightning.modules import (
    MMCL,
    LinearEvaluation,
    PretrainedBackbone,
    PretrainingModule,
    export_backbone,
)
from mmcl_lightning.modules.weight_files import read_backbone
from mmcl_lightning.modules.weights import load_backbone
from mmcl_lightning.studies import report, write_report

FIT = [option for option in RUN[1:] if not option.startswith("--trainer.callbacks")]
LINEAR = [
    "--config=folder_linear", "--data.root=pictures", "--data.image_size=16", "--data.batch_size=4",
    "--data.num_workers=0", "--trainer.accelerator=cpu", "--trainer.max_epochs=1",
]  # fmt: skip
#: Every command that takes a file of weights, up to the file.
WAYS = {
    "fit": ["fit", *FIT, "--ckpt_path={}"],
    "fit, init_from": ["fit", *FIT, "--model.init_from={}"],
    "fit, a linear evaluation": ["fit", *LINEAR, "--model.checkpoint={}"],
    "validate": ["validate", *FIT, "--ckpt_path={}"],
    "test": ["test", *LINEAR, "--model.checkpoint={}"],
    "predict": ["predict", *FIT, "--ckpt_path={}"],
    "negatives": ["negatives", *[option for option in FIT if "trainer" not in option], "--ckpt_path={}"],
    "embed": ["embed", "--checkpoint={}", "--data.root=pictures"],
    "export": ["export", "--checkpoint={}", "--out=out.pt"],
}
#: Two that hold code, one whose options name a module to import, one whose options name a function to call.
FILES = ("bad.ckpt", "raw.ckpt", "options.ckpt", "calls.ckpt")
#: And in Python.
LOADS: dict[str, Callable[[str], Any]] = {
    f"{kind.__name__}.load_from_checkpoint": kind.load_from_checkpoint
    for kind in (MMCL, PretrainingModule, LinearEvaluation, PretrainedBackbone)
}


class Payload:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["MMCL_TRACE"],)


def loaded(load: Callable[[str], Any], path: str) -> tuple[str, bool]:
    """Load a file in Python; return what it said, and whether that was no sentence of ours."""
    try:
        load(path)
    except MMCLError as error:
        return f"error: {error}", False
    except Exception as error:
        return repr(error), True
    return "", False


def said(arguments: list[str]) -> tuple[str, bool]:
    """Run a command here; return what it printed, and whether it ended in a traceback."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        try:
            main(arguments)
        except SystemExit:
            return output.getvalue(), False
        except Exception:
            return output.getvalue(), True
    return output.getvalue(), False


@contextmanager
def served() -> Iterator[str]:
    """Serve the present folder."""
    handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def ways_in() -> str:
    """Hostile files by every command, from disk and by HTTP."""
    os.environ |= {"MMCL_TRACE": str(Path("trace").resolve()), "TORCH_HOME": str(Path("hub").resolve())}
    assert not said(["fit", *FIT])[1]
    good = next(iter(Path("runs").glob("**/*.ckpt")))
    content = torch.load(good, weights_only=True)
    torch.save({**content, "extra": Payload()}, "bad.ckpt")
    Path("raw.ckpt").write_bytes(pickle.dumps(Payload()))
    content["hyper_parameters"]["solver"] = {"class_path": "stranger.Solver", "init_args": {}}
    torch.save(content, "options.ckpt")
    for option in ("optimizer", "kernel", "backbone"):  # the module is imported, and calling it does harm
        content["hyper_parameters"][option] = {
            "class_path": "os.mkdir", "init_args": {"path": os.environ["MMCL_TRACE"]}
        }  # fmt: skip
    content["hyper_parameters"]["solver"] = {"class_path": "mmcl_lightning.svm.Inverse"}
    torch.save(content, "calls.ckpt")
    Path("stranger.py").write_text("import os\nos.mkdir(os.environ['MMCL_TRACE'])\n")
    sys.path.insert(0, str(Path.cwd()))
    tree("pictures/a", "pictures/b")
    torch.load("bad.ckpt", weights_only=False)
    assert Path("trace").exists(), "the trap works"
    Path("trace").rmdir()
    rows = []
    with served() as address:
        for way in (*WAYS, *LOADS):
            cells = []
            for place in ("", f"{address}/"):
                refused = 0
                for file in FILES:
                    if way in LOADS:
                        text, traceback = loaded(LOADS[way], place + file)
                    else:
                        text, traceback = said([argument.format(place + file) for argument in WAYS[way]])
                    ran = Path("trace").exists()
                    # Options that nothing reads import nothing, and the weights are plain tensors.
                    harmless = file in FILES[2:] or "error: " in text
                    refused += harmless and not traceback and not ran
                    if ran or traceback or not harmless:
                        print(way, place, file, text[-500:], sep="\n")
                cells.append(f"{refused} of {len(FILES)}")
            rows.append([way, *cells])
            print(*rows[-1], flush=True)
    return table(["way in", "a file", "an address"], rows)


MARKUP = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "\n\n# heading",
    "https://example.org", "a | b | c", "```x",
)  # fmt: skip
STEERING = ("\x1b[2J\x1b[31m", "\x07", "a\rb", "\u202eevil", "\ud800", "\x00")
NUMBERS = (1e308, -1e308, float("nan"), float("inf"), 10**4000, 2**63, -1)
OTHERS = (None, True, [], {}, "", "a" * 100_000)
HTML = re.compile(r"<(?=[a-zA-Z/!?])(?!br>)|(?<!\\)\]\((?!\w+\.png\))|://|^# heading", re.MULTILINE)
UNSEEN = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e\ud800-\udfff]")


def places(part: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value of a record stands."""
    inner = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


def records() -> str:
    """Values of strangers at every place of the record of a real run."""
    assert not said(["fit", *FIT])[1]
    source = next(iter(Path("runs").glob("**/ledger.json")))
    whole = json.loads(source.read_text())
    whole["metrics"] = dict(list(whole["metrics"].items())[:1])
    whole["config"] = {"model": whole["config"]["model"]}
    other = {**whole, "seed": 1, "label": "other"}
    Path("records/other").mkdir(parents=True)
    Path("records/other/ledger.json").write_text(json.dumps(other))
    Path("records/hostile").mkdir()
    rows, found = [], [path for path in places(whole) if path[0] != "ledger"]
    kinds = {"markup": MARKUP, "terminal escapes": STEERING, "numbers": NUMBERS, "other types": OTHERS}
    nothing = functools.partial(mock.patch.object, report, new=lambda *_: False)
    for kind, values in kinds.items():
        tried, counts = 0, {"shown": 0, "refused": 0, "markup": 0, "escapes": 0, "traceback": 0}
        for path in found:
            for value in values:
                changed = copy.deepcopy(whole)
                part = functools.reduce(lambda inner, key: inner[key], path[:-1], changed)
                part[path[-1]] = value
                Path("records/hostile/ledger.json").write_text(json.dumps(changed))
                tried += 1
                with nothing(attribute="plot_curves"), nothing(attribute="plot_ends"):
                    try:
                        text, ending = write_report(Path("records"), Path("report.md")), "shown"
                    except MMCLError as error:
                        text, ending = str(error), "refused"
                    except Exception as error:
                        text, ending = "", "traceback"
                        print(path, repr(value)[:60], repr(error)[:200])
                counts[ending] += 1
                counts["markup"] += ending == "shown" and bool(HTML.search(text))
                counts["escapes"] += bool(UNSEEN.search(text))
        rows.append([kind, str(tried), *map(str, counts.values())])
        print(*rows[-1], flush=True)
    head = [
        "a value of",
        "tried",
        "shown as text",
        "refused in a sentence",
        "markup",
        "escapes",
        "tracebacks",
    ]
    return table(head, rows)


def formats() -> str:
    """A backbone in every format, read back by the library that the format is of."""
    rows = []
    assert not said(["fit", *FIT, "--model.backbone=resnet18", "--trainer.max_epochs=1"])[1]
    checkpoint = str(next(iter(Path("runs").glob("**/*.ckpt"))))
    for name, out in (
        ("torchvision", "a.pt"), ("timm", "b.pt"), ("safetensors", "c.safetensors"), ("onnx", "d.onnx"),
        ("huggingface", "hub"),
    ):  # fmt: skip
        text = export_backbone(checkpoint, out, name)  # type: ignore[arg-type]
        rows.append([name, text.partition(": ")[2].partition("; ")[2].replace("|", "\\|")])
        print(*rows[-1], flush=True)
    return table(["`--format`", "read back"], rows)


def _below(prefix: str, weights: dict[str, Any], *others: str) -> dict[str, Any]:
    return {f"{prefix}{key}": value for key, value in weights.items()} | {
        key: torch.zeros(2) for key in others
    }


def _numbered(net: nn.Module) -> dict[str, Any]:
    return nn.Sequential(*list(net.children())[:-1]).state_dict()


LAYOUTS: dict[str, Callable[[nn.Module], dict[str, Any]]] = {
    "MMCL's published code": lambda net: _below("convnet.", net.state_dict(), "projection.0.weight"),
    "lightly's examples": lambda net: {"state_dict": _below("backbone.", _numbered(net), "criterion.x")},
    "solo-learn": lambda net: {"state_dict": _below("backbone.", net.state_dict(), "projector.0.weight")},
    "lightning-bolts, SimCLR": lambda net: {
        "state_dict": _below("encoder.", net.state_dict(), "projection.0.weight")
    },
    "lightning-bolts, BYOL": lambda net: {
        "state_dict": _below("online_network.encoder.", net.state_dict())
        | _below("target_network.encoder.", net.state_dict())
    },
}


def layouts() -> str:
    """Files as other projects save a ResNet-18, loaded strictly."""
    rows = []
    for name, layout in LAYOUTS.items():
        net = torchvision.models.resnet18()
        net.fc = nn.Identity()
        torch.save(layout(net), "theirs.pt")
        own = build_backbone("resnet18")
        text = load_backbone(own, read_backbone("theirs.pt"))
        images = torch.rand(2, 3, 64, 64)
        same = torch.equal(own.eval()(images), net.eval()(images))
        rows.append([name, text.partition(": ")[2], "equal in all bits" if same else "**differs**"])
        print(*rows[-1], flush=True)
    return table(["layout of", "report", "h"], rows)


TASKS: dict[str, tuple[str, str, Callable[[], str]]] = {
    "ways": ("Ways in for a file", "Four hostile files: a checkpoint with an object that runs code, a bare "
             "pickle of it, and two checkpoints of the command line whose options name a module that nobody "
             "has named, and a function to call. Counted is "
             "what runs no code, imports nothing and ends without a traceback.", ways_in),
    "records": ("Records of strangers", "One value at a time at every place of the record of a run, and "
                "`mmcl report` on it.", records),
    "formats": ("Formats", "`mmcl export` of a ResNet-18 from a run.", formats),
    "layouts": ("Layouts", "Files of a ResNet-18 in the layouts of other projects.", layouts),
}  # fmt: skip


def command() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="folder of faults.md")
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    out = options.out.resolve()
    for name in options.only:
        title, note, task = TASKS[name]
        with tempfile.TemporaryDirectory() as place, within(Path(place)):
            found = task()
        done = f"`python benchmarks/fault_files.py --only {name}`. {note}"
        write(out / "faults.md", {title: f"{done}\n\n{found}"})


if __name__ == "__main__":
    command()
