//! The vsock device and its socket on the host.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use api::VsockConfig;
use devices::virtio::vsock::Vsock;

use super::Error;

/// The guest's address on its vsock: the first that is not reserved. Every machine has a vsock of its own, so all can have it.
const GUEST_CID: u32 = 3;

/// A directory that only we may use, removed when dropped.
pub struct PrivateDir(PathBuf);

impl PrivateDir {
    fn create() -> io::Result<Self> {
        let base = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, Into::into);
        let pid = std::process::id();
        for attempt in 0..100 {
            let path = base.join(format!("longarm-{pid}-{attempt}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes the device; with it the path of its socket, absolute so that others can use it, and what must live as long.
pub fn create(config: &VsockConfig) -> Result<(Vsock, PathBuf, Option<PrivateDir>), Error> {
    let host = |source| Error::Host {
        what: "--vsock",
        source,
    };
    let (path, dir) = match config {
        VsockConfig::Path(path) => (absolute(path).map_err(host)?, None),
        VsockConfig::Auto => {
            let dir = PrivateDir::create().map_err(host)?;
            (dir.join("vsock"), Some(dir))
        }
    };
    let device = Vsock::new(GUEST_CID, &path)?;
    Ok((device, path, dir))
}

fn absolute(path: &Path) -> io::Result<PathBuf> {
    std::path::absolute(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_socket_of_our_choice_lies_where_only_we_can_reach_it_and_goes_with_the_machine() {
        let (_device, path, dir) = create(&VsockConfig::Auto).unwrap();
        let parent = path.parent().unwrap().to_path_buf();
        assert_eq!(
            parent.metadata().unwrap().permissions().mode() & 0o777,
            0o700
        );
        assert!(path.exists());
        drop(dir);
        assert!(!parent.exists());
    }
}
