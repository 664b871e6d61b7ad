"""ADE20K scene parsing, with 150 classes."""

from __future__ import annotations

from strop.data.decode import make_table
from strop.data.filelist import FileDataset, Files
from strop.data.layout import first_folder, list_files, require_folder, require_some
from strop.data.record import VOID
from strop.files import PathLike

# The first name of each class in objectInfo150.txt.
_NAMES = """
wall; building; sky; floor; tree; ceiling; road; bed; windowpane; grass; cabinet; sidewalk;
person; earth; door; table; mountain; plant; curtain; chair; car; water; painting; sofa;
shelf; house; sea; mirror; rug; field; armchair; seat; fence; desk; rock; wardrobe; lamp;
bathtub; railing; cushion; base; box; column; signboard; chest of drawers; counter; sand;
sink; skyscraper; fireplace; refrigerator; grandstand; path; stairs; runway; case; pool table;
pillow; screen door; stairway; river; bridge; bookcase; blind; coffee table; toilet; flower;
book; hill; bench; countertop; stove; palm; kitchen island; computer; swivel chair; boat; bar;
arcade machine; hovel; bus; towel; light; truck; tower; chandelier; awning; streetlight;
booth; television; airplane; dirt track; apparel; pole; land; bannister; escalator; ottoman;
bottle; buffet; poster; stage; van; ship; fountain; conveyer belt; canopy; washer; plaything;
swimming pool; stool; barrel; basket; waterfall; tent; bag; minibike; cradle; oven; ball;
food; step; tank; trade name; microwave; pot; animal; bicycle; lake; dishwasher; screen;
blanket; sculpture; hood; sconce; vase; traffic light; tray; ashcan; fan; pier; crt screen;
plate; monitor; bulletin board; shower; radiator; glass; clock; flag
"""
CLASSES = tuple(" ".join(name.split()) for name in _NAMES.split(";"))


def ade20k(path: PathLike, split: str = "validation") -> FileDataset:
    """ADE20K's `split` (training or train, validation or val).

    0 in a mask is void; 1 to 150 are the classes 0 to 149. If the folders have no splits, all
    images are read for any split.
    """
    tree = "images/{training,validation}/ and annotations/{training,validation}/"
    root = require_folder(path, "ADE20K", tree)
    if (root / "ADEChallengeData2016").is_dir():
        root = root / "ADEChallengeData2016"
    split = {"train": "training", "val": "validation"}.get(split, split)
    flat = (root / "images").is_dir() and not any(p.is_dir() for p in (root / "images").iterdir())
    inside = "" if flat else f"/{split}"
    images = first_folder(root, [f"images{inside}"], "ADE20K")
    masks = first_folder(root, [f"annotations{inside}"], "ADE20K")
    names = list_files(images)
    require_some(names, "ADE20K", images, "images such as ADE_val_00000001.jpg")
    images_at, masks_at = images.relative_to(root), masks.relative_to(root)
    items = [
        Files(stem, f"{images_at}/{name}", semantic=f"{masks_at}/{stem}.png")
        for name in names
        for stem in [name.rpartition(".")[0]]
    ]
    return FileDataset(
        name=f"ade20k-{split}",
        root=root,
        items=items,
        classes=CLASSES,
        label_names=CLASSES,
        table=make_table({0: VOID, **{i + 1: i for i in range(len(CLASSES))}}),
        label_ids=range(len(CLASSES)),
    )
