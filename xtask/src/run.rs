//! `run`: the machine's serial line on the user's terminal.

use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::cli;
use crate::context::{Context, Need, command_line};
use crate::guest::{self, Echo, Failure, FailureKind, Guest};
use crate::terminal::{Console, Key, Keys};

const KEYS: &str = "\r\nCtrl-C or Ctrl-A X ends QEMU; Ctrl-A Ctrl-C sends Ctrl-C, Ctrl-A Ctrl-A sends Ctrl-A\r\n";

/// How often the end of the machine, its limit and the user's wish are looked for.
const LOOK: Duration = Duration::from_millis(100);

/// Boots a program interactively.
///
/// # Errors
///
/// The machine cannot be built or started, fails, or does not end within its limit.
pub fn run(context: &Context, arguments: &cli::Run) -> Result<()> {
    let (toolchain, products) = context.build(Need::Boot)?;
    let name = arguments.program.trim_start_matches("/bin/");
    if !products.programs.iter().any(|program| program == name) {
        bail!("there is no program `{name}`; there are: {}", products.programs.join(", "));
    }
    let command_line = command_line(&arguments.program, &arguments.arguments)?;
    let mut configuration = context.configuration(&products, &arguments.machine, command_line);
    configuration.forwards = arguments.forward.clone();
    if arguments.gdb {
        let port = guest::free_port()?;
        configuration.gdb_port = Some(port);
        eprintln!("The machine waits for gdb. In another terminal:");
        eprintln!("    gdb-multiarch {} -ex 'target remote 127.0.0.1:{port}'", configuration.kernel.display());
    }
    let log = context.log("run");
    let mut machine = Guest::start(&toolchain.qemu, &context.board, &configuration, &log, Echo::Terminal)?;
    let console = Console::open();
    let quit = Arc::new(AtomicBool::new(false));
    if let Some(input) = machine.input() {
        let quit = quit.clone();
        // Nobody waits for this thread: it may be reading the keyboard for ever.
        thread::spawn(move || forward_keys(io::stdin().lock(), input, &quit));
    }
    let result = wait(&mut machine, &quit, arguments.limit.map(Duration::from_secs));
    machine.end();
    drop(console);
    // The machine may have left its last line unfinished.
    eprintln!();
    Ok(result?)
}

fn wait(machine: &mut Guest, quit: &AtomicBool, limit: Option<Duration>) -> Result<(), Failure> {
    let started = Instant::now();
    loop {
        match machine.wait_for_end(LOOK) {
            Err(Failure { kind: FailureKind::TooLate { .. }, .. }) => {}
            Ok(_) => return Ok(()),
            Err(failure) => return Err(failure),
        }
        if quit.load(Ordering::Acquire) {
            return Ok(());
        }
        if let Some(limit) = limit
            && started.elapsed() >= limit
        {
            let expected = "the machine to end".into();
            let kind = FailureKind::TooLate { expected, limit, last_line: machine.last_line() };
            return Err(Failure { kind, log: machine.log().to_path_buf() });
        }
    }
}

/// Copies what is typed to the machine until one of the two ends.
fn forward_keys(input: impl BufRead, mut machine: impl Write, quit: &AtomicBool) {
    let mut keys = Keys::default();
    for byte in input.bytes().map_while(Result::ok) {
        match keys.press(byte) {
            Some(Key::Send(byte)) => match machine.write_all(&[byte]).and_then(|()| machine.flush()) {
                Ok(()) => {}
                Err(_) => return,
            },
            Some(Key::Quit) => {
                quit.store(true, Ordering::Release);
                return;
            }
            Some(Key::Help) => eprint!("{KEYS}"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_to_the_machine_until_the_user_quits() {
        let mut sent = Vec::new();
        let quit = AtomicBool::new(false);
        forward_keys(&b"ls\r\x01\x01\x01xnever"[..], &mut sent, &quit);
        assert_eq!(sent, b"ls\r\x01");
        assert!(quit.load(Ordering::Acquire));
    }
}
