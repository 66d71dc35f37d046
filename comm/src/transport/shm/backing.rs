//! The file behind a segment: made by rank 0, opened by the others, nameless as soon as possible.
//!
//! First choice is a memfd, which never has a name, so that nothing can be left behind, and does not count against the
//! size of /dev/shm. The others open it through /proc; where they may not (other user, other process namespace), a
//! file in /dev/shm takes its place until all have opened it.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::segment::{Segment, Token, segment_bytes};

const PREFIX: &str = "warpweft-";
/// A file this old whose maker is gone was left by a job that was killed in its first moments.
const STALE: Duration = Duration::from_secs(60);

/// Where a segment's bytes live.
#[derive(Clone, Debug)]
pub(in crate::transport) enum Backing {
    Memfd,
    /// A file in a folder of a memory file system, which must have this much room left, whatever the system says.
    Folder {
        path: PathBuf,
        most_bytes: u64,
    },
}

impl Backing {
    /// What is tried, in this order.
    pub(in crate::transport) fn choices() -> [Self; 2] {
        [Self::Memfd, Self::Folder { path: "/dev/shm".into(), most_bytes: u64::MAX }]
    }
}

/// A segment as its maker holds it until all have attached. Dropping it takes the name away.
pub(super) struct Made {
    segment: Segment,
    name: Name,
}

impl Made {
    /// Where the others find it.
    pub(super) fn path(&self) -> &Path {
        &self.name.path
    }

    /// The segment, whose name is no longer needed.
    pub(super) fn into_segment(self) -> Segment {
        self.segment
    }
}

/// A way to open a file.
struct Name {
    path: PathBuf,
    /// Open, so that the path of a memfd stays valid; locked, so that a stale file can be told from a fresh one.
    file: File,
    remove: bool,
}

impl Drop for Name {
    fn drop(&mut self) {
        if self.remove {
            // Already gone, or beyond our power: a later job sweeps it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes the segment of a group. The error says what was needed and what there is.
pub(super) fn make(backing: &Backing, world: usize, token: &Token) -> Result<Made, String> {
    let bytes = segment_bytes(world);
    let name = match backing {
        Backing::Memfd => memfd()?,
        Backing::Folder { path, most_bytes } => {
            sweep(path);
            let free = free_bytes(path)?.min(*most_bytes);
            if free < bytes as u64 {
                return Err(format!("{world} ranks need {bytes} bytes, {} has {free} free", path.display()));
            }
            named_file(path, token)?
        }
    };
    let segment = allocate(&name.file, bytes as u64).and_then(|()| Segment::in_file(&name.file, world));
    let segment = segment.map_err(|error| {
        format!("{bytes} bytes of shared memory for {world} ranks in {}: {error}", name.path.display())
    })?;
    if let Backing::Memfd = backing {
        // A peer that shrank the file would make the others' accesses fault. Where seals are unknown, that risk stays.
        let _ = rustix::fs::fcntl_add_seals(&name.file, SealFlags::SHRINK | SealFlags::GROW);
    }
    segment.set_token(token);
    Ok(Made { segment, name })
}

fn memfd() -> Result<Name, String> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("warpweft", flags).map_err(|error| format!("memfd_create: {error}"))?;
    let file = File::from(file);
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    Ok(Name { path: path.into(), file, remove: false })
}

fn named_file(folder: &Path, token: &Token) -> Result<Name, String> {
    let digits: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = folder.join(format!("{PREFIX}{digits}"));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let file = options.open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    // Without the lock (a file system may have none) the file could be swept once it is `STALE`; by then all have it.
    let _ = file.try_lock();
    Ok(Name { path, file, remove: true })
}

/// Opens the segment that rank 0 made.
pub(super) fn open(path: &Path, world: usize, token: &Token) -> Result<Segment, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(|error| failed(&error))?;
    let bytes = file.metadata().map_err(|error| failed(&error))?.len();
    let needed = segment_bytes(world) as u64;
    if bytes != needed {
        return Err(failed(&format!("has {bytes} bytes, the segment of {world} ranks has {needed}")));
    }
    let segment = Segment::in_file(&file, world).map_err(|error| failed(&error))?;
    if segment.has_token(token) { Ok(segment) } else { Err(failed(&"is not the segment of this group")) }
}

/// Takes the pages from the file system now: a write to a page that it cannot give later would raise SIGBUS.
fn allocate(file: &File, bytes: u64) -> rustix::io::Result<()> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

fn free_bytes(folder: &Path) -> Result<u64, String> {
    let status = rustix::fs::statvfs(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(status.f_bavail.saturating_mul(status.f_frsize))
}

/// Removes files of jobs that were killed between making and opening them: old, and locked by nobody.
fn sweep(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let ours = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    for entry in ours {
        let age = entry.metadata().and_then(|data| data.modified()).map(|time| time.elapsed().unwrap_or_default());
        let orphan = || File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
        if age.is_ok_and(|age| age > STALE) && orphan() {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &Path) -> usize {
        std::fs::read_dir(folder).expect("a folder").count()
    }

    #[test]
    fn both_backings_open_and_leave_nothing() {
        let folder = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
        let named = Backing::Folder { path: folder.path().into(), most_bytes: u64::MAX };
        for backing in [Backing::Memfd, named] {
            let made = make(&backing, 3, &[7; 16]).expect("memory");
            assert!(open(made.path(), 3, &[7; 16]).is_ok(), "{backing:?}");
            assert!(open(made.path(), 3, &[8; 16]).err().expect("token").contains("not the segment"));
            assert!(open(made.path(), 2, &[7; 16]).err().expect("size").contains("bytes"));
            drop(made);
            assert_eq!(files(folder.path()), 0, "{backing:?}");
        }
    }

    #[test]
    fn too_little_room_is_an_error_with_the_numbers() {
        let folder = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
        let backing = Backing::Folder { path: folder.path().into(), most_bytes: 65536 };
        let error = make(&backing, 2, &[1; 16]).err().expect("too small");
        assert!(error.contains(&segment_bytes(2).to_string()) && error.contains("65536"), "{error}");
        assert_eq!(files(folder.path()), 0);
        let missing = Backing::Folder { path: folder.path().join("none"), most_bytes: u64::MAX };
        assert!(make(&missing, 2, &[1; 16]).is_err());
    }

    #[test]
    fn only_files_of_dead_jobs_are_swept() {
        let folder = tempfile::tempdir().expect("a folder");
        let old = std::time::SystemTime::now() - STALE * 2;
        let file = |name: &str| {
            let file = File::create(folder.path().join(name)).expect("a file");
            file.set_modified(old).expect("a time");
            file
        };
        drop(file("warpweft-dead"));
        let alive = file("warpweft-alive");
        alive.try_lock().expect("a lock");
        file("other");
        File::create(folder.path().join("warpweft-young")).expect("a file");
        sweep(folder.path());
        let mut left: Vec<_> = std::fs::read_dir(folder.path()).expect("it").flatten().map(|e| e.file_name()).collect();
        left.sort();
        assert_eq!(left, ["other", "warpweft-alive", "warpweft-young"]);
    }
}
