"""A cluster of one node, in this process."""

from __future__ import annotations

import pytest

from gpusim.cluster.apistore import Store

from .storeapi import StoreApi


@pytest.fixture
def store() -> Store:
    store = Store()
    store.create("nodes", {"metadata": {"name": "n1"}})
    return store


@pytest.fixture
def api(store: Store) -> StoreApi:
    return StoreApi(store)
