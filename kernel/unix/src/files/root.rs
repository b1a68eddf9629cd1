//! The root of all paths on a disk, as the boot command line names it.
//!
//! `root=/dev/vda` has the machine begin in the volume of that disk, `rootfstype=ext4` says what it is, and `ro` or
//! `rw` whether it is changed: as on Linux, it is not unless `rw` is there. A coroutine mounts the volume before the
//! first program is looked for, and there its directories `/dev`, `/proc`, `/run` and `/tmp` are covered: by the
//! devices, by generated files, and by empty trees in memory. Without `root=` the first file system, which the archive
//! has filled, is the root.
//!
//! Rejected: an archive whose program mounts the disk and goes on there. It would need calls that move mounts and roots
//! of processes, and each machine would carry one more program.

use alloc::format;
use alloc::string::{String, ToString};

use abi_unix::Errno;
use ext4::Access;

use crate::files::disk;
use crate::files::mounts::{self, AtStart};
use crate::files::tree;
use crate::files::volume::{MountedVolume, Source, VolumeAnswer, VolumeRequest};
use crate::machine::{boot_option, boot_word};
use crate::process::accounts::Account;

/// The root on a disk that the boot command line names.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RootOnDisk {
    device: String,
    kind: String,
    access: Access,
}

/// Returns the root that a boot command line names; `None` if that is the archive.
pub(crate) fn named_by(line: &str) -> Option<RootOnDisk> {
    let device = boot_option(line, "root")?.to_string();
    let kind = boot_option(line, "rootfstype").unwrap_or("ext4").to_string();
    let access = match boot_word(line, &["ro", "rw"]) {
        Some("rw") => Access::Write,
        _ => Access::Read,
    };
    Some(RootOnDisk { device, kind, access })
}

impl RootOnDisk {
    /// Mounts the volume as the root of all paths, and the file systems that the machine has there. Says why it cannot.
    ///
    /// # Cancellation
    /// Some of them are mounted.
    pub(crate) async fn mount(&self) -> Result<(), String> {
        self.mount_volume().await.map_err(|reason| format!("cannot mount {} as the root: {reason}", self.device))?;
        let devices = AtStart::Devices(tree::devices().mount.clone());
        let all = [
            ("/dev", devices),
            ("/proc", AtStart::Proc),
            ("/run", AtStart::Memory(0o755)),
            ("/tmp", AtStart::Memory(0o1777)),
        ];
        for (path, files) in all {
            match mounts::mount_at_start(path, files).await {
                Ok(()) => {}
                // Programs expect the first two everywhere.
                Err(Errno::ENOENT | Errno::ENOTDIR) if matches!(path, "/run" | "/tmp") => {}
                Err(Errno::ENOENT | Errno::ENOTDIR) => {
                    platform::println!("the root on {} has no directory {path}: nothing is mounted there", self.device);
                }
                // A machine that starts can be mended.
                Err(error) => platform::println!("cannot mount {path} on {}: {error}", self.device),
            }
        }
        Ok(())
    }

    async fn mount_volume(&self) -> Result<(), String> {
        if !mounts::is_volume(self.kind.as_bytes()) {
            return Err(format!("rootfstype={} is no kind of volume; ext4 is one", self.kind));
        }
        let name = self.device.strip_prefix("/dev/").unwrap_or(&self.device);
        let Some(disk) = disk::all().iter().find(|disk| disk.name() == name) else {
            return Err(format!("there is no such disk; {}", present()));
        };
        if self.access == Access::Write && disk.is_read_only() {
            return Err("the disk cannot be written; say ro instead of rw".into());
        }
        let account = Account::first();
        let mounted = async {
            match MountedVolume::begin(Source::Disk(disk), self.access, account, 0)?.answer().await? {
                VolumeAnswer::Mounted(volume) => volume.submit(account, 0, VolumeRequest::Root)?.answer().await,
                _ => Err(Errno::EIO),
            }
        };
        match mounted.await {
            Ok(VolumeAnswer::File(root, _)) => {
                mounts::begin_in_volume(root, self.device.as_bytes()).map_err(|error| error.to_string())
            }
            Ok(_) => Err(Errno::EIO.to_string()),
            Err(Errno::EINVAL) => Err("it has no volume of ext4 that can be mounted, as the line above says".into()),
            Err(Errno::EIO) => Err("the disk does not answer as it should (EIO)".into()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Says which disks there are.
fn present() -> String {
    let mut names = String::new();
    for disk in disk::all() {
        names += if names.is_empty() { "there are " } else { ", " };
        names += disk.name();
    }
    if names.is_empty() { "the machine has none".into() } else { names }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_named_with_its_kind_and_its_access() {
        let root =
            |device: &str, kind: &str, access| Some(RootOnDisk { device: device.into(), kind: kind.into(), access });
        assert_eq!(named_by("init=/bin/x"), None);
        assert_eq!(named_by("init=/bin/x -- root=/dev/vda"), None, "an argument");
        assert_eq!(named_by("root=/dev/vda"), root("/dev/vda", "ext4", Access::Read), "as on Linux");
        assert_eq!(named_by("rw root=vdb rootfstype=xfs"), root("vdb", "xfs", Access::Write));
        assert_eq!(named_by("rw root=/dev/vda ro"), root("/dev/vda", "ext4", Access::Read), "the last one holds");
        assert_eq!(named_by("root=/dev/vda row rw=1 -- rw"), root("/dev/vda", "ext4", Access::Read));
    }
}
