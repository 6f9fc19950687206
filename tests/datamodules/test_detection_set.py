"""VOCDetectionDataModule: VOC's files as boxes that move with their images, and XML that may be hostile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from runs import Box, voc_xml, write_voc
from torchvision.datasets import VOCDetection

from mmcl_lightning.datamodules import VOCDetectionDataModule
from mmcl_lightning.datamodules.preprocessing import Preprocessing
from mmcl_lightning.errors import ConfigError, DataError
from mmcl_lightning.transforms import EvalTransform

DOG: Box = ("dog", 5, 6, 20, 17, 0)


def dataset(root: Path, **options: Any) -> VOCDetectionDataModule:
    small: dict[str, Any] = {
        "years": [2007],
        "class_names": ["dog", "cat"],
        "short_sides": [32],
        "eval_short_side": 64,
        "num_workers": 0,
    }
    return VOCDetectionDataModule(str(root), **(small | options))


def opened(root: Path, **options: Any) -> VOCDetectionDataModule:
    data = dataset(root, **options)
    data.setup()
    return data


def annotated(root: Path, text: str) -> VOCDetectionDataModule:
    """A set whose second training image has this annotation."""
    path = write_voc(root) / "Annotations" / "000001.xml"
    path.write_text(text)
    return opened(root)


def test_objects_are_those_of_the_files(tmp_path: Path) -> None:
    write_voc(tmp_path)
    data = opened(tmp_path)
    (image, objects), *rest = ((i[0], o[0]) for i, o in data.test_dataloader())
    assert image.shape == (3, 64, 96)
    assert objects["boxes"].tolist() == [[8, 5, 24, 17], [28, 16, 48, 32]]  # pixels from 0, the last excluded
    assert objects["boxes"].dtype == torch.float32
    assert objects["labels"].tolist() == [1, 2]
    assert objects["difficult"].tolist() == [False, False]
    assert objects["size"].tolist() == [32, 48]
    assert [int(o["position"]) for _, o in rest] == [1, 2]
    assert rest[0][1]["difficult"].tolist() == [False, True]
    left, top, right, bottom = (int(2 * edge) for edge in objects["boxes"][0])
    assert image[0, top + 3 : bottom - 3, left + 3 : right - 3].min() > 0.6  # the dog is red
    assert data.class_names == ["dog", "cat"]
    assert data.folder == tmp_path.name
    published = VOCDetection(str(tmp_path), year="2007", image_set="test")
    boxes = [part["bndbox"] for part in published[0][1]["annotation"]["object"]]
    assert [
        [int(b[k]) - (k in ("xmin", "ymin")) for k in ("xmin", "ymin", "xmax", "ymax")] for b in boxes
    ] == (objects["boxes"].tolist())


def test_boxes_move_with_their_images(tmp_path: Path) -> None:
    write_voc(tmp_path, train=12)
    data = opened(tmp_path, short_sides=(32, 48, 64), batch_size=3)
    seen = set()
    for epoch in range(2):
        loader = data.train_dataloader()
        loader.sampler.set_epoch(epoch)
        for images, objects in loader:
            assert len(images) == len(objects) == 3
            for image, own in zip(images, objects, strict=True):
                scale = image.shape[1] / 32
                left, top, right, bottom = own["boxes"][0].tolist()
                assert (right - left, bottom - top) == pytest.approx((16 * scale, 12 * scale))
                red = (image[0] > 0.6) & (image[2] < 0.4)
                columns = red.any(0).nonzero()
                assert int(columns.min()) == pytest.approx(left, abs=2)
                assert int(columns.max()) + 1 == pytest.approx(min(right, red.shape[1]), abs=2)
                seen.add((image.shape[1], bool(left > image.shape[2] / 2 - 8 * scale)))
    assert seen == {(side, flipped) for side in (32, 48, 64) for flipped in (False, True)}


def test_draws_depend_on_seed_epoch_and_position_alone(tmp_path: Path) -> None:
    write_voc(tmp_path, train=8)

    def boxes(**options: Any) -> list[list[Any]]:
        loader = opened(tmp_path, short_sides=(32, 48), **options).train_dataloader()
        loader.sampler.set_epoch(3)
        torch.manual_seed(len(options))
        return sorted(own["boxes"].tolist() for _, objects in loader for own in objects)

    assert boxes() == boxes(batch_size=4) == boxes(batch_size=1) != boxes(seed=1)


def test_years_splits_and_classes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_voc(tmp_path)
    folder = write_voc(tmp_path, 2012, train=2)
    (folder / "Annotations" / "000001.xml").write_text(voc_xml([]))
    data = opened(tmp_path, years=(2007, 2012))
    assert len(data.splits.pretrain) == 6
    assert data.splits.pretrain.path(5) == str(folder / "JPEGImages" / "000001.jpg")
    assert data.splits.heldout.path(0).endswith("VOC2007/JPEGImages/000004.jpg")
    assert caplog.text.count("1 of 6 training images and 0 of 3 test images have no object") == 1
    empty = data.train_dataloader().dataset[0, 5][1]
    assert (empty["boxes"].shape, empty["labels"].tolist()) == ((0, 4), [])
    with pytest.warns(UserWarning, match="3 of the 3 test images are trained on too"):
        opened(tmp_path, train_split="test")
    assert VOCDetectionDataModule().class_names[::19] == ["aeroplane", "tvmonitor"]
    reduced = opened(tmp_path, train_subset=2, test_subset=1)
    assert [len(reduced.splits.pretrain), len(reduced.test_dataloader())] == [2, 1]


def test_a_fingerprint_covers_the_objects(tmp_path: Path) -> None:
    folder = write_voc(tmp_path)
    before = opened(tmp_path).fingerprint()
    (folder / "Annotations" / "000002.xml").write_text(voc_xml([("dog", 5, 6, 20, 18, 0)]))
    after = opened(tmp_path).fingerprint()
    assert before["pretrain"] != after["pretrain"]
    assert before["heldout"] == after["heldout"]


def test_mean_and_std_come_with_the_weights(tmp_path: Path) -> None:
    write_voc(tmp_path)
    data, plain = opened(tmp_path), opened(tmp_path)
    found = Preprocessing.of(EvalTransform(36, 32, (0.5,) * 3, (0.25,) * 3), (32, 32), (32, 32), 3)
    data.take_over(found)
    for own, other in ((data.train_dataloader(), plain.train_dataloader()),
                       (data.test_dataloader(), plain.test_dataloader())):  # fmt: skip
        expected = (next(iter(other))[0][0] - 0.5) / 0.25
        assert torch.allclose(next(iter(own))[0][0], expected, atol=1e-6)


def test_one_pixel_is_a_box_and_coordinates_may_have_a_fraction(tmp_path: Path) -> None:
    text = voc_xml([("cat", 9, 9, 9, 9, 0)]).replace("<xmin>9<", "<xmin> 8.5 <")
    data = annotated(tmp_path, text)
    assert data.splits.pretrain.pair(1)[1].boxes.tolist() == [[7.5, 8, 9, 9]]
    data = annotated(tmp_path, text.replace("<difficult>0</difficult>", ""))
    assert data.splits.pretrain.pair(1)[1].difficult.tolist() == [False]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<annotation><object>", r"000001\.xml is no XML \(no element found"),
        ("", r"is no XML"),
        ("\x00\x01", r"is no XML"),
        ("<html></html>", r"is not of VOC: it begins with <html>"),
        (voc_xml([("cow", 1, 1, 9, 9, 0)]), r"000001\.xml: there is no class 'cow' among dog, cat: set "
         r"--data\.class_names to those of your data, which names cat, cow, dog"),
        (voc_xml([DOG, ("cat", 9, 1, 8, 9, 0)]), r"000001\.xml, object 2: the box is empty or inverted, from "
         r"\(9, 1\) to \(8, 9\)"),
        (voc_xml([("cat", 1, 9, 9, 3, 0)]), r"object 1: the box is empty or inverted"),
        (voc_xml([DOG]).replace("<xmax>20", "<xmax>nan"), r"expected bndbox/xmax as a number of pix.* 'nan'"),
        (voc_xml([DOG]).replace("<xmax>20", "<xmax>1e300"), r"expected bndbox/xmax as a number"),
        (voc_xml([DOG]).replace("<ymin>6</ymin>", ""), r"expected bndbox/ymin as a number of pixels, got ''"),
        (voc_xml([DOG]).replace("<width>48", "<width>wide"), r"expected size/width as a number"),
        (voc_xml([("", 1, 1, 9, 9, 0)]), r"expected a name, and difficult as 0 or 1, got '' and '0'"),
        (voc_xml([("dog", 1, 1, 9, 9, 2)]), r"got 'dog' and '2'"),
        (f"<!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>{voc_xml([DOG])}", r"has a declaration"),
        (f"<?xml version='1.0'?>\n<!ENTITY x 'xx'>{voc_xml([DOG])}", r"has a declaration such as DOCTYPE"),
        ("<a>" * 100_000 + "</a>" * 100_000, r"is not of VOC: it begins with <a>"),
        ("<annotation>" + "<a>" * 100_000, r"is no XML"),
        (" " * (2**20 + 1), r"has more than 1,048,576 bytes, and is not read"),
        (voc_xml([("x" * 10_000, 1, 1, 9, 9, 0)]), r"there is no class 'x{50}' among dog, cat: set"),
    ],
)  # fmt: skip
def test_annotations_that_are_none(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=why) as found:
        annotated(tmp_path, text)
    assert "\n" not in str(found.value)


def test_no_encoding_hides_a_declaration_and_no_path_is_opened(tmp_path: Path) -> None:
    laughs = "<!DOCTYPE a [<!ENTITY x 'ha'>]>" + voc_xml([DOG]).replace("dog", "&x;")
    path = write_voc(tmp_path) / "Annotations" / "000001.xml"
    for encoding in ("utf-16", "utf-7", "utf-8-sig"):
        path.write_bytes(f'<?xml version="1.0" encoding="{encoding}"?>{laughs}'.encode(encoding))
        with pytest.raises(DataError, match=r"is no XML|has a declaration"):
            opened(tmp_path)
    # Other bytes than UTF-8 in what is not read do no harm, nor do comments.
    path.write_bytes(b"<!-- \xe9 --><!-- x -->" + voc_xml([DOG]).encode().replace(b"none.jpg", b"\xe9.jpg"))
    assert opened(tmp_path).splits.pretrain.objects[1].names == ("dog",)


def test_files_that_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"VOC2007: .*Main/trainval\.txt is missing; set --data\.root to the"):
        opened(tmp_path)
    folder = write_voc(tmp_path)
    with pytest.raises(DataError, match=r"VOC2012: .*is missing; .* and --data\.years to the years in it"):
        opened(tmp_path, years=[2007, 2012])
    table = folder / "ImageSets" / "Main" / "trainval.txt"
    for text, why in (
        ("000000\n00000X\n", r"trainval\.txt, line 2: there is no image '00000X' in .*VOC2007/JPEGImages"),
        ("../Annotations/000000\n", r"line 1: there is no image '\.\./Annotations/000000'"),
        ("x" * 5000, r"line 1: there is no image 'xxx"),
        ("000000\n000001\n000000\n", r"line 1: the image '000000' is listed 2 times"),
        ("\n", r"it lists no image"),
    ):
        table.write_text(text)
        with pytest.raises(DataError, match=why):
            opened(tmp_path)
    table.write_text("000000\n000001\n")
    annotation = folder / "Annotations" / "000000.xml"
    text = annotation.read_text()
    for size, why in (
        ((50, 32), r"is of an image of 50 x 32 pixels, and .* has 48 x 32: its boxes are not of this image"),
        ((32, 48), r"is of an image of 32 x 48 pixels, and .* has 48 x 32 as it is shown upright: its"),
    ):
        annotation.write_text(voc_xml([DOG], size))
        with pytest.raises(DataError, match=why):
            list(opened(tmp_path).train_dataloader())
    for corners, shown in (((60, 1, 70, 9), "59, 0, 70, 9"), ((1, 1, 4000, 3000), "0, 0, 4000, 3000")):
        annotation.write_text(voc_xml([DOG, ("cat", *corners, 0)]))
        why = rf"of object 2, \({shown}\) from 0 on, lies by more than half outside of its image of 48 x 32"
        with pytest.raises(DataError, match=why):
            list(opened(tmp_path).train_dataloader())
    annotation.write_text(voc_xml([DOG, ("cat", 31, 20, 55, 36, 0)]))  # cut off by the rim
    list(opened(tmp_path).train_dataloader())
    annotation.unlink()
    with pytest.raises(DataError, match=r"Annotations/000000\.xml is missing"):
        opened(tmp_path)
    annotation.write_text(text)
    (folder / "JPEGImages" / "000000.jpg").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"000000\.jpg"):
        list(opened(tmp_path).train_dataloader())
    for path in (folder / "Annotations").iterdir():
        path.write_text(voc_xml([]))
    with pytest.raises(DataError, match=r"none of the 2 training images below .* has an object"):
        opened(tmp_path)
    annotation.write_text(text)
    with pytest.raises(DataError, match=r"none of the \d test images below .* has an object"):
        opened(tmp_path)


def test_other_endings_than_jpg(tmp_path: Path) -> None:
    images = write_voc(tmp_path) / "JPEGImages"
    Image.fromarray(np.zeros((32, 48, 3), dtype=np.uint8)).save(images / "000000.png")
    assert opened(tmp_path).splits.pretrain.path(0).endswith("000000.jpg")
    (images / "000000.jpg").unlink()
    assert opened(tmp_path).splits.pretrain.path(0).endswith("000000.png")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"years": []}, r"data\.years must name each once, and at least one, got \[\]"),
        ({"years": [2007, 2007]}, r"data\.years must name each once"),
        ({"years": ["x"]}, "years must be an integer >= 0, got 'x'"),
        ({"class_names": ["a", "a"]}, r"data\.class_names must name each once"),
        ({"class_names": "dog"}, r"data\.class_names must be a list of names, such as .*, got 'dog'"),
        ({"class_names": [1, 2]}, r"data\.class_names must be a list of names"),
        ({"class_names": []}, r"data\.class_names must name each once, and at least one"),
        ({"short_sides": []}, r"data\.short_sides must name one length"),
        ({"eval_short_side": 0}, "eval_short_side must be an integer >= 1, got 0"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
    ],
)
def test_options_are_checked(options: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why):
        dataset(tmp_path, **options)


def test_a_batch_needs_its_images(tmp_path: Path) -> None:
    write_voc(tmp_path)
    with pytest.raises(
        ConfigError, match=r"data\.batch_size is 5 on each of 1 devices, and there are only 4"
    ):
        opened(tmp_path, batch_size=5).train_dataloader()


def test_a_foreign_sampler_gives_plain_positions(tmp_path: Path) -> None:
    """As Lightning's, of overfit_batches."""
    write_voc(tmp_path)
    dataset = opened(tmp_path).train_dataloader().dataset
    (pixels, objects), (same, _) = dataset[1], dataset[0, 1]
    assert torch.equal(pixels, same)
    assert len(objects["boxes"]) == 2
