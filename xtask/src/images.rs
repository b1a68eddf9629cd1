//! One user at a time for the images of the machine.
//!
//! `test`, `bench` and other commands that boot for minutes build images of several kinds under the same names. Two of
//! them side by side in one clone would boot each other's, so each holds a lock until its end; the second one is told
//! about the first. The host releases the lock of a program that dies.

use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// The right to build and boot the images in a directory; dropping it ends it.
#[derive(Debug)]
pub struct Images(#[allow(dead_code)] File);

/// Claims the images in a directory for a command.
///
/// # Errors
///
/// Another program has claimed them, or the directory cannot be written.
pub fn claim(products: &Path, command: &str) -> Result<Images> {
    std::fs::create_dir_all(products).with_context(|| format!("cannot make {}", products.display()))?;
    let path = products.join("lock");
    let open = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = open.with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            let holder = if holder.is_empty() { "another command" } else { &holder };
            bail!(
                "{holder} boots the images in {}, which {command} would replace; wait for its end, or use another clone \
                 (git worktree add)",
                products.display()
            );
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("cannot lock {}", path.display()));
        }
    }
    file.set_len(0).and_then(|()| write!(file, "`cargo xtask {command}` (process {})", std::process::id()))?;
    Ok(Images(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_user_is_told_of_the_first() {
        let directory = std::env::temp_dir().join(format!("xtask-images-{}", std::process::id()));
        let first = claim(&directory, "test").unwrap();
        let error = claim(&directory, "bench").unwrap_err().to_string();
        let holder = format!("`cargo xtask test` (process {}) boots the images in", std::process::id());
        assert!(error.starts_with(&holder) && error.contains("bench would replace"), "{error}");
        drop(first);
        drop(claim(&directory, "bench").unwrap());
        std::fs::remove_dir_all(directory).unwrap();
        assert!(claim(Path::new("/proc/nowhere"), "test").is_err());
    }
}
