"""Stores: the programs of a corpus as a Lance dataset. See `strop.store.store`."""
