//! Files that appear whole or not at all.

use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Lets `write` make a file, then puts it in the place of `path` at once, when everything is on the disk.
pub(crate) fn replace_with<E>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), E>,
    io: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // Beside the file: only within one file system can a file take another's place at once.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{number}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let result = write(&temporary)
        .and_then(|()| File::options().write(true).open(&temporary).and_then(|file| file.sync_all()).map_err(&io))
        .and_then(|()| fs::rename(&temporary, path).map_err(&io));
    if result.is_err() {
        // What is left of it is of no use; that it may not be there is no news.
        let _ = fs::remove_file(&temporary);
    }
    result?;
    sync_folder(path).map_err(&io)
}

/// As [`replace_with`], with these bytes.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, |temporary| fs::write(temporary, bytes), |error| error)
}

/// Puts a rename on the disk, where that is a thing of its own.
fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent().filter(|_| cfg!(unix)) {
        Some(folder) if folder.as_os_str().is_empty() => File::open(".")?.sync_all(),
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}
