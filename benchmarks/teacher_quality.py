"""How good teachers' fields are, by one probe on one split: the figures in a teacher's card."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from common import device, machine, save
from strop.cli.console import counting
from strop.data.spec import open_dataset
from strop.evaluation.teacher import teacher_quality
from strop.model.teacher import Teacher
from strop.training.distilled import add_metrics
from strop.training.networks import load_network
from strop.training.student import grouped

COLUMNS = ("miou", "map", "grouping_auc", "effective_rank")
TEMPERATURE = 0.1


class Grouped(nn.Module):
    """A network whose field is averaged over what another holds alike, as in a distillation."""

    def __init__(self, network: Teacher, by: Teacher) -> None:
        super().__init__()
        self.backbone, self.network, self.by = network.backbone, network, by
        self.mean, self.width = network.mean, network.width

    def forward(self, images: Tensor) -> Tensor:
        """uint8 images (B, 3, H, H) to the field (B, S, d)."""
        return grouped(self.network(images), self.by(images), TEMPERATURE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teachers", nargs="+", help="as in `teacher distill --from`")
    parser.add_argument("--train", required=True, help="a spec with masks and labels")
    parser.add_argument("--val", required=True)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--grouped-by", help="a network: the others' fields over its groups, too")
    parser.add_argument("--card", help="a distilled teacher's folder: all rows go into its card")
    arguments = parser.parse_args()

    train, val = open_dataset(arguments.train), open_dataset(arguments.val)
    rows = []
    for name, teacher in networks(arguments.teachers, arguments.grouped_by):
        start = time.perf_counter()
        with counting(name) as progress:
            result = teacher_quality(
                teacher, train, val, size=arguments.size, seed=arguments.seed, progress=progress
            )
        parameters = sum(each.numel() for each in teacher.backbone.parameters())
        rows.append(
            {
                "teacher": name,
                "parameters": parameters,
                **result,
                "seconds": time.perf_counter() - start,
            }
        )

    title = f"fields at {arguments.size} px on {train.name} and {val.name}"
    table = Table("teacher", "M", "width", *COLUMNS, title=f"{title}, {machine()['device']}")
    for row in rows:
        figures = [f"{row[column]:.3f}" for column in COLUMNS]
        millions = f"{row['parameters'] / 1e6:.1f}"
        table.add_row(row["teacher"], millions, str(row["width"]), *figures)
    Console().print(table)
    save(
        "teacher_quality",
        {
            "data": {"train": train.name, "val": val.name},
            "size": arguments.size,
            "seed": arguments.seed,
            "rows": rows,
        },
    )
    if arguments.card:
        where = f"{train.name} and {val.name}, {arguments.size} px"
        add_metrics(
            arguments.card,
            {f"{row['teacher']}, {name} on {where}": row[name] for row in rows for name in COLUMNS},
        )


def networks(names: list[str], by: str | None) -> Iterator[tuple[str, Teacher | Grouped]]:
    """What is measured, by the names it has in tables."""
    for name in names:
        yield short(name), load_network(name).to(device())
    for name in names if by else ():
        if name != by:
            pair = [load_network(each).to(device()) for each in (name, by)]
            yield f"{short(name)} over the groups of {short(by)}", Grouped(*pair)


def short(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]


if __name__ == "__main__":
    main()
