//! Atomic file replacement.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use bevy::log::debug;

/// Attempts to find an unused temporary name. Names are random, so more than one is rarely needed.
const ATTEMPTS: usize = 8;

/// Calls `write` on a temporary file, syncs it to disk, and renames it to `path`. The rename is atomic: on an error, an
/// existing file is unchanged.
pub(crate) fn replace_with<E>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<&File>) -> Result<(), E>,
    io: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    replace_and_sync(path, write, io, sync_folder)
}

fn replace_and_sync<E>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<&File>) -> Result<(), E>,
    io: impl Fn(io::Error) -> E,
    sync: impl FnOnce(&Path) -> io::Result<()>,
) -> Result<(), E> {
    let (temporary, file) = create_beside(path).map_err(&io)?;
    let result = fill(&file, write, &io).and_then(|()| fs::rename(&temporary, path).map_err(&io));
    if result.is_err() {
        // The error of writing is the one to report.
        let _ = fs::remove_file(&temporary);
        return result;
    }
    // The file has been replaced. A folder that cannot be synced (some network drives) does not change that.
    if let Err(error) = sync(path) {
        debug!("{}: the folder could not be synced: {error}", path.display());
    }
    Ok(())
}

/// As [`replace_with`], for a file with this content.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_with(path, |file| file.write_all(bytes), |error| error)
}

/// Creates a file of a random name in the folder of `path`, because a rename is only atomic within one file system. It
/// fails rather than open a file or a link that someone else has put there.
fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name"));
    };
    let mut taken = io::ErrorKind::AlreadyExists.into();
    for _ in 0..ATTEMPTS {
        // Hashers are seeded by the operating system.
        let number = RandomState::new().build_hasher().finish();
        let mut name = name.to_owned();
        name.push(format!(".{number:016x}.tmp"));
        let temporary = path.with_file_name(name);
        match File::options().write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => taken = error,
            Err(error) => return Err(error),
        }
    }
    Err(taken)
}

fn fill<E>(
    file: &File,
    write: impl FnOnce(&mut BufWriter<&File>) -> Result<(), E>,
    io: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    let mut writer = BufWriter::new(file);
    write(&mut writer)?;
    writer.flush().map_err(&io)?;
    file.sync_all().map_err(&io)
}

/// Syncs the rename to disk. Unix needs a separate sync of the folder for that.
fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent().filter(|_| cfg!(unix)) {
        Some(folder) if folder.as_os_str().is_empty() => File::open(".")?.sync_all(),
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of its own for a test, gone with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            let number = RandomState::new().build_hasher().finish();
            let path = std::env::temp_dir().join(format!("tensor_disk_{number:x}"));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn temporary_files_are_new_and_have_unpredictable_names() {
        let folder = Folder::new();
        let path = folder.0.join("model");
        let (one, _) = create_beside(&path).unwrap();
        let (two, _) = create_beside(&path).unwrap();
        let number = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap();
            u64::from_str_radix(name.strip_prefix("model.").and_then(|name| name.strip_suffix(".tmp")).unwrap(), 16)
        };
        let (one, two) = (number(&one).unwrap(), number(&two).unwrap());
        assert!(one.abs_diff(two) > 1 << 20, "{one:x} and {two:x} follow each other");
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = Folder::new();
        let path = folder.0.join("model");
        replace_file(&path, b"old").unwrap();
        let failed = replace_with(&path, |_| Err(io::Error::other("disk full")), |error| error).unwrap_err();
        assert_eq!(failed.to_string(), "disk full");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_that_cannot_be_synced_is_no_failure() {
        let folder = Folder::new();
        let path = folder.0.join("model");
        let sync = |_: &Path| Err(io::Error::other("no sync"));
        replace_and_sync(&path, |file| file.write_all(b"new"), |error: io::Error| error, sync).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn a_path_without_a_file_name_is_an_error() {
        assert_eq!(replace_file(Path::new("/"), b"x").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
