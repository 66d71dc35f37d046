//! The secret of a user, for jobs whose launcher gives none: a file that only its owner can read.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::secret::{Secret, random_bytes};
use crate::CommError;

/// Reads the user's secret; makes it on first use.
pub(super) fn load() -> Result<Secret, CommError> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let configuration = variable("XDG_CONFIG_HOME").or_else(|| variable("HOME").map(|home| home.join(".config")));
    let configuration = configuration.ok_or_else(|| CommError::Config {
        what: "neither WARPWEFT_SECRET nor HOME is set, so there is no secret to prove membership of the job with"
            .into(),
        fix: "set WARPWEFT_SECRET to the same 64 hexadecimal digits for every rank".into(),
    })?;
    load_from(&configuration.join("warpweft"))
}

fn load_from(folder: &Path) -> Result<Secret, CommError> {
    let path = folder.join("secret");
    let failed = |error: std::io::Error| CommError::System {
        what: format!("the user's secret {} (WARPWEFT_SECRET overrides it)", path.display()),
        reason: error.to_string(),
    };
    match fs::metadata(&path) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => make(folder, &path).map_err(failed)??,
        Err(error) => return Err(failed(error)),
    }
    let data = fs::metadata(&path).map_err(failed)?;
    let user = rustix::process::geteuid().as_raw();
    if data.mode() & 0o077 != 0 || data.uid() != user {
        return Err(CommError::Config {
            what: format!(
                "{} has mode {:o} and belongs to user {}, so that others than user {user} may know it",
                path.display(),
                data.mode() & 0o777,
                data.uid()
            ),
            fix: "remove it, so that a new one is made".into(),
        });
    }
    let digits = fs::read_to_string(&path).map_err(failed)?;
    Secret::from_hex(digits.trim()).ok_or_else(|| CommError::Config {
        what: format!("{} does not hold 64 hexadecimal digits", path.display()),
        fix: "remove it, so that a new one is made".into(),
    })
}

/// Makes the file whole or not at all: several ranks may start at once on a shared folder, and all must read the same.
fn make(folder: &Path, path: &Path) -> std::io::Result<Result<(), CommError>> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let (secret, name) = match (Secret::random(), random_bytes::<8>()) {
        (Ok(secret), Ok(name)) => (secret, u64::from_le_bytes(name)),
        (Err(error), _) | (_, Err(error)) => return Ok(Err(error)),
    };
    let draft = folder.join(format!("secret.{name:016x}"));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = file.write_all(secret.to_hex().as_bytes()).and_then(|()| file.sync_all());
    // A link, unlike a rename, does not replace the file of a rank that was faster.
    let linked = written.and_then(|()| fs::hard_link(&draft, path));
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(Ok(())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_made_once_by_whoever_is_first_and_only_its_owner_reads_it() {
        let home = tempfile::tempdir().expect("a folder");
        let folder = home.path().join("config/warpweft");
        let secrets: Vec<Secret> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..8).map(|_| scope.spawn(|| load_from(&folder).expect("a secret"))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        });
        assert!(secrets.iter().all(|secret| *secret == secrets[0]));
        let names: Vec<_> = fs::read_dir(&folder).expect("made").flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(names, ["secret"]);
        let path = folder.join("secret");
        assert_eq!(fs::metadata(&path).expect("made").mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("ours");
        assert!(load_from(&folder).expect_err("readable by others").to_string().contains("640"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
        fs::write(&path, "12").expect("ours");
        assert!(load_from(&folder).expect_err("damaged").to_string().contains("64 hexadecimal"));
    }
}
