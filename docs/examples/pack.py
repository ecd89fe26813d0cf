"""Write a finished recording anew with its tables compressed, a third of the size; probe and h5py read it as before.

python docs/examples/pack.py a.h5 small.h5

What tells of the machine alone (its system, the commit of the folder it ran in, where packages and programs lie) is left out.
"""

from __future__ import annotations

import re

import click
import h5py

OF_THE_MACHINE = {"platform", "git_commit"}
FOLDER = re.compile(rb"^.*/(?=site-packages/|docs/)")


def copy_attributes(source: h5py.HLObject, target: h5py.HLObject) -> None:
    """Copy all attributes but those of the machine."""
    for name, value in source.attrs.items():
        if name not in OF_THE_MACHINE:
            target.attrs[name] = value


def packed(table: h5py.Dataset, target: h5py.File) -> h5py.Dataset:
    """Copy a table as one compressed chunk."""
    fixed = not table.dtype.hasobject  # text of any length is stored apart: neither shuffled nor checked
    rows = table[()]
    if table.name == "/modules":
        rows["file"] = [FOLDER.sub(b"", file) for file in rows["file"]]
    return target.create_dataset(
        table.name,
        data=rows,
        dtype=table.dtype,
        chunks=tuple(max(size, 1) for size in table.shape),
        maxshape=table.maxshape,
        compression="gzip",
        compression_opts=9,
        shuffle=fixed,
        fletcher32=fixed,
    )


@click.command()
@click.argument("source", type=click.Path(exists=True))
@click.argument("target", type=click.Path())
def main(source: str, target: str) -> None:
    """Write the recording SOURCE anew, compressed, as TARGET."""
    with h5py.File(source) as old, h5py.File(target, "w") as new:
        if old["tensors/blob"].size:
            raise click.ClickException(f"{source} holds tensors, which probe reads past HDF5: expected statistics only")

        def copy(name: str, item: h5py.HLObject) -> None:
            copy_attributes(item, packed(item, new) if isinstance(item, h5py.Dataset) else new.require_group(name))

        copy_attributes(old, new)
        old.visititems(copy)


if __name__ == "__main__":
    main()
