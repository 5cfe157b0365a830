"""Runs on disk: atomic files, resumable, safe for several processes."""

from hyperribbon.core.store.atomic import (
    clear_leftovers,
    ensure_folder,
    make_folder,
    read_json,
    remove_folder,
    stored_path,
    write_bytes,
    write_json,
    write_text,
    writing,
)
from hyperribbon.core.store.kept import Kept, content_digest
from hyperribbon.core.store.manifest import (
    add_to_manifest,
    finish_save,
    list_new_files,
    save_folder,
)
from hyperribbon.core.store.runs import (
    RunFolder,
    Store,
    config_hash,
    describe_environment,
    git_commit,
)
from hyperribbon.core.store.trees import load_tree, save_tree

__all__ = [
    "Kept",
    "RunFolder",
    "Store",
    "add_to_manifest",
    "clear_leftovers",
    "config_hash",
    "content_digest",
    "describe_environment",
    "git_commit",
    "list_new_files",
    "ensure_folder",
    "finish_save",
    "load_tree",
    "make_folder",
    "read_json",
    "remove_folder",
    "save_folder",
    "save_tree",
    "stored_path",
    "write_bytes",
    "write_json",
    "write_text",
    "writing",
]
