//! Atomic file replacement.

use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Calls `write` to create a temporary file, syncs it to disk, and renames it to `path`. The rename is atomic.
pub(crate) fn replace_with<E>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), E>,
    io: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // In the same folder, because a rename is only atomic within one file system.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{number}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let result = write(&temporary)
        .and_then(|()| File::options().write(true).open(&temporary).and_then(|file| file.sync_all()).map_err(&io))
        .and_then(|()| fs::rename(&temporary, path).map_err(&io));
    if result.is_err() {
        // The temporary file is useless now. It may not even exist, so the result is ignored.
        let _ = fs::remove_file(&temporary);
    }
    result?;
    sync_folder(path).map_err(&io)
}

/// As [`replace_with`], for a file with this content.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, |temporary| fs::write(temporary, bytes), |error| error)
}

/// Syncs the rename to disk. Unix needs a separate sync of the folder for that.
fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent().filter(|_| cfg!(unix)) {
        Some(folder) if folder.as_os_str().is_empty() => File::open(".")?.sync_all(),
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}
