//! A server of 9P2000.L for tests, with a directory of the developer's computer. It finds attributes, and changes them,
//! by the paths of files, as QEMU 7.2 does, and bytes by openings.

use std::collections::HashMap;
use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::sync::Mutex;

use abi_unix::types::AT_FDCWD;
use abi_unix::types::open as flag;
use abi_unix::{Errno, SystemCall};
use shared_folder::wire::{HEADER, Reader, kind};

use super::*;
use crate::process::authority;
use crate::testing::{Program, run};

/// The name of the folder.
const NAME: &str = "shared";
const NOT_PERMITTED: u32 = 1;
const BAD: u32 = 9;
const NO_SPACE: u32 = 28;

enum Opened {
    File(File),
    Names(Vec<Vec<u8>>),
}

/// A file that is held.
struct Fid {
    path: PathBuf,
    opened: Option<Opened>,
}

/// The server.
#[derive(Default)]
pub(in crate::files) struct Server {
    root: PathBuf,
    fids: HashMap<u32, Fid>,
    answer: Option<Vec<u8>>,
    /// The types of the messages that have come, and the numbers of the held files that they are about.
    pub(in crate::files) asked: Vec<(u8, u32)>,
    /// Messages of these types are refused with this error.
    pub(in crate::files) refuses: HashMap<u8, u32>,
    /// Number of bytes that can be written before there is no room.
    pub(in crate::files) room: Option<usize>,
    /// Changes the answers to messages of a type.
    pub(in crate::files) changes: Option<fn(u8, &mut [u8])>,
    /// Number of answers after which the server is silent.
    pub(in crate::files) answers: Option<usize>,
    /// Renames are answered as if they were done, and are not.
    pub(in crate::files) renames_nothing: bool,
}

static SERVER: Mutex<Option<Server>> = Mutex::new(None);

/// Does something with the server.
pub(in crate::files) fn server<T>(act: impl FnOnce(&mut Server) -> T) -> T {
    let mut server = SERVER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    act(server.get_or_insert_default())
}

/// Has the server answer again.
pub(in crate::files) fn go_on() {
    server(|server| server.answers = None);
    let folders = FOLDERS.get().unwrap();
    serve(folders.iter().position(|folder| folder.name == NAME.as_bytes()).unwrap());
}

/// The device of the server.
struct Handle;

impl Device for Handle {
    fn send(&mut self, message: &[u8]) -> Result<(), RequestError> {
        server(|server| {
            assert!(server.answer.is_none(), "one message is under way at a time");
            server.answer = Some(server.answer_to(message));
        });
        Ok(())
    }

    fn take(&mut self, into: &mut [u8]) -> Option<Result<usize, RequestError>> {
        let answer = server(|server| {
            if server.is_silent() {
                return None;
            }
            let answer = server.answer.take()?;
            server.answers = server.answers.map(|left| left - 1);
            Some(answer)
        })?;
        let Some(room) = into.get_mut(..answer.len()) else { return Some(Err(RequestError::Failed)) };
        room.copy_from_slice(&answer);
        Some(Ok(answer.len()))
    }

    fn give_up(&mut self) {}
}

/// Makes the folder of the tests.
pub(super) fn folder() -> HostFolder {
    let reservation = time::Reservation::new().unwrap();
    HostFolder::new(NAME.into(), None, Box::new(Handle), reservation)
}

fn qid(of: &Metadata) -> Vec<u8> {
    let mut bytes = std::vec![if of.is_dir() { 0x80 } else { 0 }, 0, 0, 0, 0];
    bytes.extend_from_slice(&of.ino().to_le_bytes());
    bytes
}

fn text(reader: &mut Reader<'_>) -> PathBuf {
    PathBuf::from(std::ffi::OsStr::from_bytes(reader.text().unwrap()))
}

type Answer = Result<Vec<u8>, io::Error>;

fn refusal(number: u32) -> io::Error {
    io::Error::from_raw_os_error(number as i32)
}

impl Server {
    fn answer_to(&mut self, message: &[u8]) -> Vec<u8> {
        let (asked, tag) = (message[4], &message[5..HEADER]);
        let first = message.get(HEADER..HEADER + 4).map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().unwrap()));
        self.asked.push((asked, first));
        let answered = match self.refuses.get(&asked) {
            Some(error) => Err(refusal(*error)),
            None => self.act(asked, Reader::of(&message[HEADER..])),
        };
        let (kind, body) = match answered {
            Ok(body) => (asked + 1, body),
            Err(error) => (kind::REFUSED, (error.raw_os_error().unwrap_or(5) as u32).to_le_bytes().to_vec()),
        };
        let mut answer = ((HEADER + body.len()) as u32).to_le_bytes().to_vec();
        answer.push(kind);
        answer.extend_from_slice(tag);
        answer.extend_from_slice(&body);
        if let Some(change) = self.changes {
            change(asked, &mut answer);
        }
        answer
    }

    /// Whether nothing is answered.
    pub(in crate::files) fn is_silent(&self) -> bool {
        self.answers == Some(0)
    }

    /// Whether a message waits for its answer.
    pub(in crate::files) fn has_a_message(&self) -> bool {
        self.answer.is_some()
    }

    /// Returns the number of files that are held.
    pub(in crate::files) fn held(&self) -> usize {
        self.fids.len()
    }

    fn fid(&mut self, number: u32) -> Result<&mut Fid, io::Error> {
        self.fids.get_mut(&number).ok_or_else(|| refusal(BAD))
    }

    fn path(&mut self, number: u32) -> Result<PathBuf, io::Error> {
        self.fid(number).map(|fid| fid.path.clone())
    }

    fn hold(&mut self, number: u32, path: PathBuf) {
        let before = self.fids.insert(number, Fid { path, opened: None });
        assert!(before.is_none(), "the number is used already");
    }

    fn act(&mut self, asked: u8, mut message: Reader<'_>) -> Answer {
        let message = &mut message;
        match asked {
            kind::VERSION => {
                self.fids.clear();
                let most = message.u32().unwrap();
                Ok([&most.to_le_bytes()[..], b"\x08\x009P2000.L"].concat())
            }
            kind::ATTACH => {
                let (number, root) = (message.u32().unwrap(), self.root.clone());
                let found = qid(&root.symlink_metadata()?);
                self.hold(number, root);
                Ok(found)
            }
            kind::WALK => {
                let (from, to, names) = (message.u32().unwrap(), message.u32().unwrap(), message.u16().unwrap());
                let mut path = self.path(from)?;
                let mut answer = names.to_le_bytes().to_vec();
                for _ in 0..names {
                    path.push(text(message));
                    answer.extend_from_slice(&qid(&path.symlink_metadata()?));
                }
                self.hold(to, path);
                Ok(answer)
            }
            kind::LET_GO => {
                self.fids.remove(&message.u32().unwrap()).ok_or_else(|| refusal(BAD))?;
                Ok(Vec::new())
            }
            kind::ATTRIBUTES => self.attributes(message.u32().unwrap()),
            kind::CHANGE => self.change(message),
            kind::OPEN => {
                let (number, flags) = (message.u32().unwrap(), message.u32().unwrap());
                let path = self.path(number)?;
                let found = path.symlink_metadata()?;
                let opened = match found.is_dir() {
                    true => {
                        let names = path.read_dir()?.map(|entry| entry.unwrap().file_name().into_vec());
                        Opened::Names([b".".to_vec(), b"..".to_vec()].into_iter().chain(names).collect())
                    }
                    false => {
                        let mut options = OpenOptions::new();
                        options.read(flags & 3 != flag::WRONLY).write(flags & 3 != 0);
                        Opened::File(options.custom_flags((flags & flag::APPEND) as i32).open(&path)?)
                    }
                };
                self.fid(number)?.opened = Some(opened);
                Ok([qid(&found), std::vec![0; 4]].concat())
            }
            kind::CREATE => {
                let (number, name) = (message.u32().unwrap(), text(message));
                let (_, mode) = (message.u32().unwrap(), message.u32().unwrap());
                let path = self.path(number)?.join(name);
                let file = OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(&path)?;
                let found = qid(&file.metadata()?);
                *self.fid(number)? = Fid { path, opened: Some(Opened::File(file)) };
                Ok([found, std::vec![0; 4]].concat())
            }
            kind::READ => {
                let (number, offset, count) = (message.u32().unwrap(), message.u64().unwrap(), message.u32().unwrap());
                let Some(Opened::File(file)) = &self.fid(number)?.opened else { return Err(refusal(BAD)) };
                let mut bytes = std::vec![0; count as usize];
                let read = file.read_at(&mut bytes, offset)?;
                Ok([&(read as u32).to_le_bytes()[..], &bytes[..read]].concat())
            }
            kind::WRITE => {
                let (number, offset, count) = (message.u32().unwrap(), message.u64().unwrap(), message.u32().unwrap());
                let mut bytes = message.take(count as usize).unwrap();
                if let Some(room) = &mut self.room {
                    bytes = &bytes[..bytes.len().min(*room)];
                    *room -= bytes.len();
                    if bytes.is_empty() {
                        return Err(refusal(NO_SPACE));
                    }
                }
                let Some(Opened::File(file)) = &self.fid(number)?.opened else { return Err(refusal(BAD)) };
                Ok((file.write_at(bytes, offset)? as u32).to_le_bytes().to_vec())
            }
            kind::LIST => self.list(message),
            kind::SYNCHRONISE => match &self.fid(message.u32().unwrap())?.opened {
                Some(_) => Ok(Vec::new()),
                None => Err(refusal(BAD)),
            },
            kind::SIZES => {
                let mut answer = [1u32.to_le_bytes(), 4096u32.to_le_bytes()].concat();
                answer.extend([100u64; 5].into_iter().flat_map(u64::to_le_bytes));
                answer.extend([0; 12]);
                Ok(answer)
            }
            kind::READ_LINK => {
                let target = self.path(message.u32().unwrap())?.read_link()?.into_os_string().into_vec();
                Ok([&(target.len() as u16).to_le_bytes()[..], &target].concat())
            }
            _ => self.change_names(asked, message),
        }
    }

    fn change_names(&mut self, asked: u8, message: &mut Reader<'_>) -> Answer {
        let at = self.path(message.u32().unwrap())?;
        match asked {
            kind::LINK => {
                let file = self.path(message.u32().unwrap())?;
                std::fs::hard_link(file, at.join(text(message)))?;
                Ok(Vec::new())
            }
            kind::MAKE_DIRECTORY => {
                let path = at.join(text(message));
                std::fs::create_dir(&path)?;
                Ok(qid(&path.symlink_metadata()?))
            }
            kind::MAKE_LINK => {
                let path = at.join(text(message));
                std::os::unix::fs::symlink(text(message), &path)?;
                Ok(qid(&path.symlink_metadata()?))
            }
            kind::RENAME if self.renames_nothing => Ok(Vec::new()),
            kind::RENAME => {
                let from = at.join(text(message));
                let to = self.path(message.u32().unwrap())?.join(text(message));
                std::fs::rename(&from, &to)?;
                for fid in self.fids.values_mut() {
                    if let Ok(below) = fid.path.strip_prefix(&from) {
                        fid.path = if below.as_os_str().is_empty() { to.clone() } else { to.join(below) };
                    }
                }
                Ok(Vec::new())
            }
            kind::REMOVE => {
                let path = at.join(text(message));
                if message.u32().unwrap() == 0 {
                    std::fs::remove_file(path)?
                } else {
                    std::fs::remove_dir(path)?
                }
                Ok(Vec::new())
            }
            _ => Err(refusal(NOT_PERMITTED)),
        }
    }

    fn attributes(&mut self, number: u32) -> Answer {
        let found = self.path(number)?.symlink_metadata()?;
        let mut answer = [&0x7ffu64.to_le_bytes()[..], &qid(&found)].concat();
        answer.extend([found.mode(), found.uid(), found.gid()].into_iter().flat_map(u32::to_le_bytes));
        let numbers = [found.nlink(), found.rdev(), found.size(), found.blksize(), found.blocks()];
        let times = [found.atime(), found.atime_nsec(), found.mtime(), found.mtime_nsec(), found.ctime()];
        let rest = [found.ctime_nsec() as u64, 0, 0, 0, 0];
        let all = numbers.into_iter().chain(times.map(|time| time as u64)).chain(rest);
        answer.extend(all.flat_map(u64::to_le_bytes));
        Ok(answer)
    }

    fn change(&mut self, message: &mut Reader<'_>) -> Answer {
        let path = self.path(message.u32().unwrap())?;
        let (bits, mode) = (message.u32().unwrap(), message.u32().unwrap());
        let _owner = (message.u32().unwrap(), message.u32().unwrap());
        let size = message.u64().unwrap();
        path.symlink_metadata()?;
        if bits & 1 != 0 {
            std::fs::set_permissions(&path, Permissions::from_mode(mode))?;
        }
        if bits & 8 != 0 {
            OpenOptions::new().write(true).open(&path)?.set_len(size)?;
        }
        Ok(Vec::new())
    }

    fn list(&mut self, message: &mut Reader<'_>) -> Answer {
        let (number, place, count) = (message.u32().unwrap(), message.u64().unwrap(), message.u32().unwrap());
        let path = self.path(number)?;
        let Some(Opened::Names(names)) = &self.fid(number)?.opened else { return Err(refusal(BAD)) };
        let mut listed = Vec::new();
        for (next, name) in (place + 1..).zip(&names[(place as usize).min(names.len())..]) {
            let Ok(found) = path.join(std::ffi::OsStr::from_bytes(name)).symlink_metadata() else { continue };
            let place = [&next.to_le_bytes()[..], &[(found.mode() >> 12) as u8]].concat();
            let entry = [&qid(&found)[..], &place, &(name.len() as u16).to_le_bytes(), name].concat();
            if listed.len() + entry.len() > count as usize {
                break;
            }
            listed.extend(entry);
        }
        Ok([&(listed.len() as u32).to_le_bytes()[..], &listed].concat())
    }
}

/// Runs a program with the folder mounted at `/tmp/folder`, and gives it the directory of the developer's computer. The
/// server holds nothing afterwards.
pub(in crate::files) fn with_folder(body: impl FnOnce(&mut Program, &std::path::Path) + Send + 'static) {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let root = std::env::temp_dir().join(std::format!("cops-folder-{}-{number}", std::process::id()));
    let here = root.clone();
    std::fs::create_dir_all(&root).unwrap();
    run(move |program| {
        server(|server| *server = Server { root: root.clone(), ..Server::default() });
        let held = abi_unix::authority::Held::of(abi_unix::authority::CapabilitySet::only(
            abi_unix::authority::Capability::Administration,
        ));
        let first = crate::process::table::find(1).unwrap();
        authority::give(&first, &program.process(), held).unwrap();
        let words = [NAME, "/tmp/folder", "9p"].map(|word| program.store(std::format!("{word}\0").as_bytes()));
        program.call(SystemCall::MakeDirectory, [AT_FDCWD as usize, words[1], 0o755]).unwrap();
        assert_eq!(program.call(SystemCall::Mount, [words[0], words[1], words[2], 0, 0]), Ok(0));
        body(program, &root);
        assert_eq!(program.call(SystemCall::Unmount, [words[1], 0]), Ok(0));
        // Its end is the coroutine's.
        program.sleep_ns(1_000_000);
        assert_eq!(server(|server| server.held()), 0, "files that are still held");
        let removes = abi_unix::types::AT_REMOVEDIR as usize;
        program.call(SystemCall::Unlink, [AT_FDCWD as usize, words[1], removes]).unwrap();
    });
    std::fs::remove_dir_all(here).unwrap();
}

/// Stores a path of a file of the folder.
pub(in crate::files) fn path_of(program: &mut Program, name: &str) -> usize {
    program.store(std::format!("/tmp/folder/{name}\0").as_bytes())
}

/// Opens a file of the folder.
pub(in crate::files) fn open(program: &mut Program, name: &str, flags: u32) -> Result<usize, Errno> {
    let path = path_of(program, name);
    program.call(SystemCall::Open, [AT_FDCWD as usize, path, flags as usize, 0o644])
}

/// Returns the number of messages of a type that have come.
pub(in crate::files) fn count(of: u8) -> usize {
    server(|server| server.asked.iter().filter(|(asked, _)| *asked == of).count())
}
