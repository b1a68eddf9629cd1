//! The console: the serial line as a terminal, which controls the session of the first process from the start on.
//!
//! A kernel coroutine takes keys as they are pressed. Output of a program waits for room in the serial line's ring: a
//! line may be slow or stalled, and the hart and the console are for others meanwhile. So do the requests that wait for
//! the line to be silent. That coroutine wakes the waiting callers, too.

use alloc::sync::Arc;
use core::sync::atomic::Ordering;

use abi_queue::Priority;
use abi_unix::Errno;
use spin::Once;

use crate::files::terminal::{Output, Terminal, TerminalFile};
use crate::files::tree::{self, CONSOLE};
use crate::process::{self, signal_sending};
use crate::scheduling::Pace;
use crate::scheduling::executor::{self, Attendant};

/// Rows, columns and pixels before a program sets others.
const WINDOW: [u16; 4] = [24, 80, 0, 0];

static TERMINAL: Once<Arc<Terminal>> = Once::new();

/// The coroutine that takes keys and wakes writers.
static TAKER: Attendant = Attendant::new();

/// Makes the terminal, and starts taking keys.
pub(crate) fn start() -> Result<(), &'static str> {
    let terminal = Terminal::new(CONSOLE, Output::Serial, WINDOW).map_err(|_| "there is no memory for the console")?;
    terminal.session.store(process::FIRST, Ordering::Relaxed);
    terminal.foreground.store(process::FIRST, Ordering::Relaxed);
    TERMINAL.call_once(|| Arc::new(terminal));
    executor::spawn_for_kernel(Priority::HIGHEST, take_keys());
    platform::set_console_listener(|| TAKER.summon());
    Ok(())
}

/// Returns the terminal.
pub(crate) fn terminal() -> &'static Arc<Terminal> {
    TERMINAL.get().expect("the console is made before any process starts")
}

/// Opens the console for the first process.
pub(crate) fn open() -> Result<TerminalFile, Errno> {
    TerminalFile::new(terminal().clone(), tree::place_of_device("console"))
}

/// Takes keys as they come, and wakes writers when there is room, for ever.
async fn take_keys() {
    loop {
        TAKER.summoned().await;
        // Those that still find no room ask the line again.
        terminal().wake_writers();
        let (mut keys, mut pace) = ([0; 64], Pace::default());
        loop {
            let count = platform::console_try_read(&mut keys);
            if count == 0 {
                break;
            }
            for &key in &keys[..count] {
                if let Some((signal, group)) = terminal().press(key) {
                    signal_sending::signal_group_from_kernel(group, signal).await;
                }
                while terminal().proceed() {
                    pace.step().await;
                }
            }
        }
    }
}

/// The serial line, as far as output waits for it.
pub(crate) mod line {
    #[cfg(not(test))]
    pub(crate) use platform::{console_is_silent as is_silent, console_room as room};

    #[cfg(test)]
    pub(crate) use super::tests::stalled::{is_silent, room};
}

#[cfg(test)]
mod tests {
    use core::pin::pin;
    use core::task::{Context, Waker};

    use abi_unix::SystemCall;
    use abi_unix::types::{self, Termios, epoll as event, open, signal, terminal, terminal::local};

    use super::*;
    use crate::testing::{Program, run, simulation};

    /// The fake machine's line has always room. This one can be stalled.
    pub(crate) mod stalled {
        use std::sync::atomic::{AtomicUsize, Ordering};

        const MOVES: usize = usize::MAX;

        /// Number of bytes that it still takes.
        static ROOM: AtomicUsize = AtomicUsize::new(MOVES);

        pub(crate) fn room(wanted: usize) -> usize {
            match ROOM.load(Ordering::Relaxed) {
                MOVES => wanted,
                room => {
                    let taken = room.min(wanted);
                    // A caller that asks writes all of it.
                    ROOM.fetch_sub(taken, Ordering::Relaxed);
                    taken
                }
            }
        }

        pub(crate) fn is_silent() -> bool {
            ROOM.load(Ordering::Relaxed) == MOVES
        }

        /// Stops taking bytes after so many more.
        pub(super) fn stall(room: usize) {
            ROOM.store(room, Ordering::Relaxed);
        }

        /// Goes on, and tells the terminal, as the interrupt does.
        pub(super) fn go_on() {
            ROOM.store(MOVES, Ordering::Relaxed);
            super::TAKER.summon();
        }
    }

    fn control(program: &mut Program, request: u32, argument: usize) -> Result<usize, Errno> {
        program.call(SystemCall::DeviceControl, [0, request as usize, argument])
    }

    /// Presses keys, as the serial line would while a program runs.
    fn type_keys(_: &mut Program, keys: &[u8]) {
        for &key in keys {
            if let Some((signal, group)) = super::terminal().press(key) {
                let mut walk = pin!(signal_sending::signal_group_from_kernel(group, signal));
                while walk.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {}
            }
        }
    }

    /// Lets a program change the terminal from the background, as shells do.
    fn keep_going(program: &mut Program) {
        const IGNORE: u64 = 1;
        let action = program.store(&[IGNORE, 0, 0].map(u64::to_le_bytes).concat());
        assert_eq!(program.call(SystemCall::SignalAction, [signal::TTOU as usize, action, 0, 8]), Ok(0));
    }

    fn settings(program: &mut Program) -> Termios {
        let place = program.place(Termios::SIZE);
        control(program, terminal::GET, place).unwrap();
        Termios::from_bytes(program.read(place, Termios::SIZE).try_into().unwrap())
    }

    fn set(program: &mut Program, request: u32, settings: Termios) {
        let place = program.store(&settings.to_bytes());
        assert_eq!(control(program, request, place), Ok(0));
    }

    #[test]
    fn a_reader_gets_lines_when_they_are_complete_and_edited() {
        run(|program| {
            program
                .add_worker(|program| {
                    program.sleep_ns(1_000_000);
                    type_keys(program, b"helpo\x7f\x7flo\r");
                    type_keys(program, b"next");
                })
                .unwrap();
            assert_eq!(program.read_from(0, 100), Ok(b"hello\n".to_vec()));
            let count = program.place(4);
            control(program, terminal::READABLE, count).unwrap();
            assert_eq!(program.read_u32(count), 0, "the next line is not complete");
            program.sleep_ns(1_000_000);
            type_keys(program, b" one\r");
            // A line that is read in pieces, and an end of the file.
            assert_eq!(program.read_from(0, 3), Ok(b"nex".to_vec()));
            assert_eq!(program.read_from(0, 100), Ok(b"t one\n".to_vec()));
            type_keys(program, b"\x04");
            assert_eq!(program.read_from(0, 100), Ok(vec![]));
        });
    }

    /// Far more keys than the terminal keeps: the others are lost, programs and their lines go on, and what comes after
    /// the unread keys are gone is read as ever.
    #[test]
    fn keys_that_no_program_reads_hold_no_program_up() {
        run(|program| {
            let usual = settings(program);
            let mut silent = usual;
            silent.local &= !local::ECHO;
            set(program, terminal::SET, silent);
            for round in 0..500 {
                type_keys(program, if round < 250 { &[b'x'; 80] } else { b"a line of some keys\r" });
                assert_eq!(program.call(SystemCall::GetProcess, []), Ok(program.id as usize));
                program.process().lines.print(format_args!("line {round}"));
            }
            let count = program.place(4);
            control(program, terminal::READABLE, count).unwrap();
            let kept = program.read_u32(count) as usize;
            assert!((1..=4096).contains(&kept), "{kept} keys are kept");
            // The line that was being typed when there was no room left has its end; later ones are lost.
            let mut first = Vec::new();
            while !first.ends_with(b"\n") {
                first.extend(program.read_from(0, 1024).unwrap());
            }
            assert_eq!(first.len(), kept);
            assert!(first[..kept - 1].iter().all(|key| *key == b'x'));
            control(program, terminal::FLUSH, terminal::queue::INPUT).unwrap();
            type_keys(program, b"next\r");
            assert_eq!(program.read_from(0, 100), Ok(b"next\n".to_vec()));
            set(program, terminal::SET_AND_FLUSH, usual);
        });
    }

    #[test]
    fn keys_are_echoed_unless_that_is_switched_off() {
        run(|program| {
            type_keys(program, b"seen\r");
            assert!(simulation().output().ends_with("seen\r\n"));
            let usual = settings(program);
            let mut silent = usual;
            silent.local &= !local::ECHO;
            set(program, terminal::SET, silent);
            type_keys(program, b"hidden\r");
            assert!(!simulation().output().contains("hidden"));
            set(program, terminal::SET_AND_FLUSH, usual);
            let count = program.place(4);
            control(program, terminal::READABLE, count).unwrap();
            assert_eq!(program.read_u32(count), 0, "what was typed is gone");
        });
    }

    #[test]
    fn without_lines_each_key_can_be_read_at_once() {
        run(|program| {
            let usual = settings(program);
            let mut raw = usual;
            raw.local &= !(local::ICANON | local::ECHO);
            set(program, terminal::SET, raw);
            program
                .add_worker(|program| {
                    program.sleep_ns(1_000_000);
                    type_keys(program, b"k");
                })
                .unwrap();
            assert_eq!(program.read_from(0, 100), Ok(b"k".to_vec()));
            set(program, terminal::SET, usual);
        });
    }

    /// The interrupt key ends the foreground group, and no other process.
    #[test]
    fn keys_end_the_group_in_the_foreground() {
        run(|program| {
            keep_going(program);
            let wait = |program: &mut Program| program.sleep_ns(1_000_000_000_000);
            let (first, second) = (program.spawn(wait).unwrap(), program.spawn(wait).unwrap());
            for child in [first, second] {
                assert_eq!(program.call(SystemCall::SetProcessGroup, [child, child]), Ok(0));
            }
            let place = program.store(&(first as u32).to_le_bytes());
            assert_eq!(control(program, terminal::SET_FOREGROUND, place), Ok(0));
            let found = program.place(4);
            control(program, terminal::GET_FOREGROUND, found).unwrap();
            assert_eq!(program.read_u32(found), first as u32);
            type_keys(program, b"\x03");
            assert_eq!(program.wait_for(usize::MAX), Ok((first, signal::INT)));
            let place = program.store(&(second as u32).to_le_bytes());
            assert_eq!(control(program, terminal::SET_FOREGROUND, place), Ok(0));
            type_keys(program, b"\x1c");
            assert_eq!(program.wait_for(usize::MAX), Ok((second, signal::QUIT)));
            for (group, error) in [(-1i32, Errno::EINVAL), (99_999, Errno::ESRCH)] {
                let place = program.store(&group.to_le_bytes());
                assert_eq!(control(program, terminal::SET_FOREGROUND, place), Err(error));
            }
            let place = program.store(&1u32.to_le_bytes());
            assert_eq!(control(program, terminal::SET_FOREGROUND, place), Ok(0));
        });
    }

    #[test]
    fn output_is_written_as_the_settings_say() {
        run(|program| {
            assert_eq!(program.write_to(1, b"two\nlines\n"), Ok(10));
            assert!(simulation().output().ends_with("two\r\nlines\r\n"));
            let long: Vec<u8> = (0..1000).map(|index| b'a' + (index % 26) as u8).collect();
            assert_eq!(program.write_to(1, &long), Ok(1000));
            assert!(simulation().output().ends_with(std::str::from_utf8(&long).unwrap()));
            assert_eq!(program.call(SystemCall::Write, [1, 0x1000, 5]), Err(Errno::EFAULT));
        });
    }

    #[test]
    fn a_stalled_line_holds_up_its_writers_and_no_other_program() {
        run(|program| {
            stalled::stall(2 * 300);
            let long = vec![b'-'; 1000];
            let writer = {
                let long = long.clone();
                program.spawn(move |program| assert_eq!(program.write_to(1, &long), Ok(1000))).unwrap()
            };
            let killed = program.spawn(move |program| _ = program.write_to(1, b"never")).unwrap();
            program.sleep_ns(1_000_000);
            assert!(simulation().output().ends_with(&"-".repeat(300)));
            assert!(!simulation().output().ends_with(&"-".repeat(301)), "as many as there is room for");
            // Keys, their echo and other calls go on.
            type_keys(program, b"k\x15");
            assert_eq!(program.call(SystemCall::GetProcess, []), Ok(program.id as usize));
            // A writer that does not wait, and one that is ended while it waits.
            let nonblocking = open::NONBLOCK as usize;
            assert_eq!(program.call(SystemCall::FileControl, [1, types::control::SETFL as usize, nonblocking]), Ok(0));
            assert_eq!(program.write_to(1, b"x"), Err(Errno::EAGAIN));
            stalled::stall(2 * 3);
            assert_eq!(program.write_to(1, b"12345"), Ok(3), "as much as there is room for");
            assert_eq!(program.call(SystemCall::FileControl, [1, types::control::SETFL as usize, 0]), Ok(0));
            assert_eq!(program.call(SystemCall::Kill, [killed, signal::KILL as usize]), Ok(0));
            assert_eq!(program.wait_for(killed), Ok((killed, signal::KILL)));
            stalled::go_on();
            assert_eq!(program.wait_for(writer), Ok((writer, 0)));
            assert!(simulation().output().ends_with(&format!("123{}", "-".repeat(700))));
        });
    }

    #[test]
    fn requests_that_wait_for_silence_wait_without_keeping_the_hart() {
        run(|program| {
            let usual = settings(program);
            for request in [terminal::DRAIN, terminal::SET_AND_WAIT, terminal::SET_AND_FLUSH] {
                stalled::stall(0);
                let waiter = program
                    .spawn(move |program| {
                        let place = program.store(&usual.to_bytes());
                        assert_eq!(control(program, request, place), Ok(0));
                    })
                    .unwrap();
                program.sleep_ns(1_000_000);
                let (any, no_wait) = (usize::MAX, types::WNOHANG as usize);
                assert_eq!(program.call(SystemCall::Wait, [any, 0, no_wait]), Ok(0), "{request:#x} waits");
                // A summons for another reason.
                TAKER.summon();
                program.sleep_ns(1_000_000);
                assert_eq!(program.call(SystemCall::Wait, [any, 0, no_wait]), Ok(0), "{request:#x} still waits");
                stalled::go_on();
                assert_eq!(program.wait_for(waiter), Ok((waiter, 0)));
            }
        });
    }

    #[test]
    fn the_console_is_writable_when_its_line_has_room() {
        run(|program| {
            let events = |program: &mut Program, timeout: usize| {
                let list = program.store(&[1u32.to_le_bytes(), event::OUT.to_le_bytes()].concat());
                let result = program.call(SystemCall::Poll, [list, 1, timeout, 0, 0]);
                (result, program.read_u32(list + 4) >> 16)
            };
            assert_eq!(events(program, 0), (Ok(1), event::OUT));
            stalled::stall(1);
            let none = program.store(&types::TimeSpec::from_ns(0).to_bytes());
            assert_eq!(events(program, none), (Ok(0), 0));
            program
                .add_worker(|program| {
                    program.sleep_ns(1_000_000);
                    stalled::go_on();
                })
                .unwrap();
            assert_eq!(events(program, 0), (Ok(1), event::OUT));
        });
    }

    #[test]
    fn the_window_has_the_size_that_was_set() {
        run(|program| {
            let place = program.place(8);
            control(program, terminal::GET_WINDOW_SIZE, place).unwrap();
            let usual = program.read(place, 8);
            let size = program.store(&[50u16, 132, 3, 4].map(u16::to_le_bytes).concat());
            control(program, terminal::SET_WINDOW_SIZE, size).unwrap();
            control(program, terminal::GET_WINDOW_SIZE, place).unwrap();
            assert_eq!(program.read(place, 8), program.read(size, 8));
            program.write(size, &usual);
            control(program, terminal::SET_WINDOW_SIZE, size).unwrap();
            for request in [terminal::GET, terminal::SET, terminal::GET_WINDOW_SIZE, terminal::READABLE] {
                assert_eq!(control(program, request, 0x1000), Err(Errno::EFAULT), "{request:#x}");
            }
            assert_eq!(control(program, terminal::FLUSH, 7), Err(Errno::EINVAL));
            assert_eq!(control(program, 0x9999, 0), Err(Errno::ENOTTY));
            assert_eq!(control(program, terminal::INSERT, size), Err(Errno::EPERM), "keys are pressed by the first");
        });
    }
}
