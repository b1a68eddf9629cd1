//! The console as a terminal: lines, raw keys, signals, process groups. Keys are pressed by `TIOCSTI`.

use abi_unix::types::terminal::{character, input, local};
use abi_unix::types::{self, Termios, signal};
use cops::file::File;
use cops::process::{Child, Command, Ending};
use cops::system::process::{Change, Child as Which, kill, wait_for_change};
use cops::system::terminal::{self, When};
use cops::time::Duration;
use cops::{Errno, system};

use crate::harness::{self, LIMIT, Outcome};
use crate::{check, check_eq, must};

/// The original settings; restored when this is dropped.
struct Restore(Termios);

impl Drop for Restore {
    fn drop(&mut self) {
        let _ = terminal::set(0, &self.0, When::Flushed);
    }
}

/// Disables echo, so that the keys of the tests are not in the log; the test may use the terminal from the background.
fn without_echo() -> Result<(Restore, Termios), Errno> {
    system::signal::ignore(signal::TTOU)?;
    let before = terminal::settings(0)?;
    let quiet = Termios { local: before.local & !local::ECHO, ..before };
    terminal::set(0, &quiet, When::Flushed)?;
    Ok((Restore(before), quiet))
}

fn press(keys: &[u8]) -> Result<(), Errno> {
    keys.iter().try_for_each(|key| terminal::insert(0, *key))
}

fn read(count: usize) -> Result<alloc::vec::Vec<u8>, Errno> {
    let mut buffer = alloc::vec![0; count];
    let count = system::file::read(0, &mut buffer)?;
    buffer.truncate(count);
    Ok(buffer)
}

pub async fn lines_are_edited_before_they_are_read() -> Outcome {
    let (_restore, quiet) = must!(without_echo());
    check_eq!(quiet.local & (local::ICANON | local::ISIG), local::ICANON | local::ISIG);
    check!(quiet.input & input::ICRNL != 0);
    must!(press(b"hellp\x7fo\rnext"));
    check_eq!(terminal::readable(0), Ok(6));
    check_eq!(must!(read(2)), b"he");
    check_eq!(must!(read(100)), b"llo\n");
    // The rest is not a line yet: a coroutine waits for it, and the worker does not.
    let waiting = cops::spawn(async {
        let console = File::open("/dev/console")?;
        let (result, mut line) = console.read(alloc::vec![0; 100]).await;
        line.truncate(result?);
        Ok::<_, Errno>(line)
    });
    cops::sleep(Duration::from_millis(5)).await;
    check!(!waiting.is_finished());
    must!(press(b" line\n"));
    check_eq!(must!(must!(must!(cops::timeout(LIMIT, waiting).await))), b"next line\n");
    // The end of the file is a read of 0 bytes.
    must!(press(b"\x04"));
    check_eq!(must!(read(10)), b"");
    check_eq!(must!(terminal::window_size(1)), (24, 80));
    Ok(())
}

pub async fn raw_keys_come_as_they_are() -> Outcome {
    let (_restore, quiet) = must!(without_echo());
    let mut raw = Termios { input: 0, local: 0, ..quiet };
    must!(terminal::set(0, &raw, When::Flushed));
    must!(press(b"\x03\r\x7f\x04"));
    check_eq!(must!(read(100)), b"\x03\r\x7f\x04");
    raw.characters[character::MINIMUM] = 0;
    must!(terminal::set(0, &raw, When::Now));
    check_eq!(must!(terminal::settings(0)), raw);
    check_eq!(must!(read(100)), b"");
    // Characters of a line can be read at once, and raw ones become a line.
    must!(terminal::set(0, &quiet, When::Now));
    must!(press(b"line"));
    must!(terminal::set(0, &raw, When::Drained));
    check_eq!(must!(read(100)), b"line");
    must!(press(b"forgotten"));
    must!(terminal::set(0, &quiet, When::Flushed));
    check_eq!(terminal::readable(0), Ok(0));
    let (reader, _writer) = must!(system::file::pipe(0));
    check_eq!(terminal::settings(reader.raw()).err(), Some(Errno::ENOTTY));
    Ok(())
}

pub async fn keys_end_the_foreground_only() -> Outcome {
    let (_restore, _) = must!(without_echo());
    let own = must!(terminal::group(0));
    check_eq!(must!(terminal::foreground(0)), own);
    let (background, foreground) = (must!(harness::act("sleep")), must!(harness::act("sleep")));
    let also = must!(harness::act("sleep"));
    check_eq!(terminal::group(background.number()), Ok(own));
    must!(terminal::set_group(background.number(), 0));
    must!(terminal::set_group(foreground.number(), foreground.number()));
    must!(terminal::set_group(also.number(), foreground.number()));
    check_eq!(terminal::set_foreground(0, 31_999), Err(Errno::ESRCH));
    must!(terminal::set_foreground(0, foreground.number()));
    must!(press(b"junk\x03"));
    for child in [&foreground, &also] {
        let ending = harness::wait(child).await;
        check_eq!(ending, Some(Ok(Ending::Killed(signal::INT as u8))));
    }
    check_eq!(terminal::readable(0), Ok(0));
    check_eq!(kill(background.number(), 0), Ok(()));
    // No process is left in that group: the key has no effect now.
    must!(press(b"\x03"));
    must!(terminal::set_foreground(0, background.number()));
    must!(press(b"\x1c"));
    let ending = harness::wait(&background).await;
    check_eq!(ending, Some(Ok(Ending::Killed(signal::QUIT as u8))));
    must!(terminal::set_foreground(0, own));
    Ok(())
}

/// Acts of this program at the terminal; with `apart:` in front in a group of its own.
pub fn act(name: &str) -> i32 {
    let name = match name.strip_prefix("apart:") {
        Some(_) if terminal::set_group(0, 0).is_err() => return 1,
        Some(rest) => rest,
        None => name,
    };
    match name {
        "read" => match read(100) {
            Ok(line) => i32::from(line != b"line\n"),
            Err(error) => error as i32,
        },
        "set" => match terminal::settings(0).and_then(|settings| terminal::set(0, &settings, When::Now)) {
            Ok(()) => 0,
            Err(error) => error as i32,
        },
        "write" => match system::file::write(1, b"") {
            Ok(_) => 0,
            Err(error) => error as i32,
        },
        _ => begin_a_session().err().map_or(0, |text| {
            cops::eprintln!("{text}");
            1
        }),
    }
}

fn start(name: &str) -> Result<Child, Errno> {
    Command::new(harness::OWN_PATH).argument("--act").argument("terminal").argument(name).spawn()
}

/// Waits until a child stops or ends.
async fn change_of(child: &Child) -> Result<Option<Change>, Errno> {
    let options = types::WEXITED | types::WUNTRACED | types::WNOHANG;
    for _ in 0..LIMIT.as_millis() {
        let found = wait_for_change(Which::Process(child.number()), options)?;
        if let Some((_, change)) = found {
            return Ok(Some(change));
        }
        cops::sleep(Duration::from_millis(1)).await;
    }
    Ok(None)
}

pub async fn the_background_waits_for_its_turn() -> Outcome {
    let (_restore, quiet) = must!(without_echo());
    let stopping = Termios { local: quiet.local | local::TOSTOP, ..quiet };
    must!(terminal::set(0, &stopping, When::Now));
    let own = must!(terminal::group(0));
    for (name, signal) in [("apart:read", signal::TTIN), ("apart:set", signal::TTOU), ("apart:write", signal::TTOU)] {
        let child = must!(start(name));
        check_eq!(must!(change_of(&child).await), Some(Change::Stopped(signal as u8)));
        // Still in the background it stops again.
        must!(kill(child.number(), signal::CONT));
        check_eq!(must!(change_of(&child).await), Some(Change::Stopped(signal as u8)));
        must!(terminal::set_foreground(0, child.number()));
        must!(kill(child.number(), signal::CONT));
        must!(press(b"line\n"));
        check_eq!(must!(change_of(&child).await), Some(Change::Ended(Ending::Exited(0))));
        must!(terminal::set_foreground(0, own));
        must!(terminal::set(0, &stopping, When::Flushed));
    }
    // The key for it stops the foreground, and no shell need ask.
    let child = must!(harness::act("sleep"));
    must!(terminal::set_group(child.number(), 0));
    must!(terminal::set_foreground(0, child.number()));
    must!(press(b"\x1a"));
    check_eq!(must!(change_of(&child).await), Some(Change::Stopped(signal::TSTP as u8)));
    must!(kill(child.number(), signal::CONT));
    let all = types::WEXITED | types::WUNTRACED | types::WCONTINUED;
    let goes_on = wait_for_change(Which::Process(child.number()), all);
    check_eq!(goes_on, Ok(Some((child.number(), Change::Continued))));
    must!(child.kill());
    check_eq!(harness::wait(&child).await, Some(Ok(Ending::Killed(signal::KILL as u8))));
    must!(terminal::set_foreground(0, own));
    Ok(())
}

pub async fn an_orphan_in_the_background_gets_an_error() -> Outcome {
    let (_restore, _) = must!(without_echo());
    let own = must!(terminal::group(0));
    let foreground = must!(harness::act("sleep"));
    must!(terminal::set_group(foreground.number(), 0));
    must!(terminal::set_foreground(0, foreground.number()));
    // The group of the first process has no parent that could continue it, and that process itself does not stop.
    for name in ["read", "set"] {
        let child = must!(start(name));
        check_eq!(harness::wait(&child).await, Some(Ok(Ending::Exited(Errno::EIO as u8))));
    }
    check_eq!(read(10), Err(Errno::EIO));
    must!(terminal::set_foreground(0, own));
    must!(foreground.kill());
    check_eq!(harness::wait(&foreground).await, Some(Ok(Ending::Killed(signal::KILL as u8))));
    Ok(())
}

/// Checks the terminal of a session from inside.
fn begin_a_session() -> Outcome {
    const NO_CONTROL: u32 = abi_unix::types::open::RDWR;
    let own = system::process::number();
    let (first, open) = (1, |path| system::file::open(path, NO_CONTROL, 0));
    check_eq!((terminal::session(0), terminal::session_of(0)), (Ok(first), Ok(first)));
    check_eq!(terminal::acquire(0), Err(Errno::EPERM));
    must!(open(c"/dev/tty"));
    // For itself alone: others of the session keep it.
    must!(terminal::give_up(0));
    check_eq!(terminal::give_up(0), Err(Errno::ENOTTY));
    check_eq!(open(c"/dev/tty").err(), Some(Errno::ENXIO));
    check_eq!(terminal::begin_session(), Ok(own));
    check_eq!(terminal::begin_session(), Err(Errno::EPERM));
    check_eq!((terminal::session(0), terminal::group(0)), (Ok(own), Ok(own)));
    check_eq!(open(c"/dev/tty").err(), Some(Errno::ENXIO));
    // The console is another session's, which does not lose it.
    must!(open(c"/dev/console"));
    check_eq!(terminal::acquire(0), Err(Errno::EPERM));
    check_eq!(terminal::foreground(0), Err(Errno::ENOTTY));
    check_eq!(terminal::set_foreground(0, own), Err(Errno::ENOTTY));
    check_eq!(terminal::session_of(0), Err(Errno::ENOTTY));
    // Foreign to the terminal, a process is not in its background.
    must!(terminal::set(0, &must!(terminal::settings(0)), When::Now));
    Ok(())
}

pub async fn sessions_begin_without_a_terminal() -> Outcome {
    let child = must!(start("session"));
    check_eq!(harness::wait(&child).await, Some(Ok(Ending::Exited(0))));
    check_eq!(terminal::session_of(0), terminal::session(0));
    Ok(())
}

pub async fn groups() -> Outcome {
    let own = system::process::number();
    let inherited = must!(terminal::group(0));
    check!(inherited != own);
    check_eq!(terminal::set_group(0, 31_999), Err(Errno::EPERM));
    check_eq!(terminal::set_group(1, 0), Err(Errno::ESRCH));
    check_eq!(terminal::group(31_999), Err(Errno::ESRCH));
    must!(terminal::set_group(0, 0));
    check_eq!(terminal::group(0), Ok(own));
    // A child is in the group of its parent, and can be moved to another.
    let (first, second) = (must!(harness::act("sleep")), must!(harness::act("sleep")));
    check_eq!(terminal::group(first.number()), Ok(own));
    must!(terminal::set_group(first.number(), 0));
    must!(terminal::set_group(second.number(), first.number()));
    // SAFETY: the calls have no pointers.
    let signal_group = |group: u32, number: u32| unsafe { system::call!(Kill, -(group as i64), number) };
    check_eq!(signal_group(first.number(), 0), Ok(0));
    check_eq!(signal_group(first.number(), signal::TERM), Ok(0));
    for _ in 0..2 {
        let mut status = 0i32;
        // SAFETY: the status is exclusively borrowed.
        let waited = unsafe { system::call!(Wait, -(first.number() as i64), &raw mut status, 0, 0) };
        let waited = must!(waited) as u32;
        check!(waited == first.number() || waited == second.number());
        check_eq!(Ending::from_status(status), Ending::Killed(signal::TERM as u8));
    }
    check_eq!(signal_group(first.number(), 0), Err(Errno::ESRCH));
    // SAFETY: the call has no pointers.
    check_eq!(unsafe { system::call!(Wait, -(first.number() as i64), 0, 0, 0) }, Err(Errno::ECHILD));
    must!(terminal::set_group(0, inherited));
    Ok(())
}
