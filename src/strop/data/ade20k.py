"""ADE20K scene parsing, with 150 classes."""

from __future__ import annotations

from strop.data.decode import make_table
from strop.data.filelist import FileDataset, paired
from strop.data.layout import Layout
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
    layout = Layout.open(path, "ADE20K", tree, "ADEChallengeData2016")
    split = {"train": "training", "val": "validation"}.get(split, split)
    top = layout.root / layout.folder("images")
    inside = f"/{split}" if any(p.is_dir() for p in top.iterdir()) else ""
    images, masks = layout.folder(f"images{inside}"), layout.folder(f"annotations{inside}")
    names = layout.images(images, "images such as ADE_val_00000001.jpg")
    return FileDataset(
        name=f"ade20k-{split}",
        root=layout.root,
        items=paired(images, masks, names),
        classes=CLASSES,
        table=make_table({0: VOID, **{i + 1: i for i in range(len(CLASSES))}}),
    )
