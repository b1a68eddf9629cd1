//! `soak`: everything at once, for long.
//!
//! In the machine the program `soak` keeps all parts of the system busy, and compares the kernel's counters at its end
//! with those near its beginning. From here, its matrix server gets requests over TCP by changing numbers of
//! connections at changing pace, and every answer is checked.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use load::{Order, Pace, Plan, Stage};

use crate::build::Products;
use crate::cli;
use crate::context::{Context, Need, command_line};
use crate::guest::{self, Echo, Forward, Guest};
use crate::progress::Activity;
use crate::toolchain::Toolchain;

/// The program in the machine, and the port of its server.
const PROGRAM: &str = "soak";
const SERVER_PORT: u16 = 7000;

/// The line with the duration for which the server expects requests.
const SERVING: &str = "soak: serving for ";

/// The line that reports success.
const WELL: &str = "soak: as before after ";

/// Longest time of the machine to boot, and to come to rest after the end.
const BOOT_LIMIT: Duration = Duration::from_secs(300);
const END_LIMIT: Duration = Duration::from_secs(600);

/// Longest time of an answer. The machine has all its other work meanwhile.
const PATIENCE: Duration = Duration::from_secs(120);

/// The loads, in turn: connections, rows of the matrices, pace.
const ROUNDS: [(usize, u32, Pace); 6] = [
    (1, 15, Pace::Every(Duration::from_millis(20))),
    (64, 15, Pace::ClosedLoop),
    (256, 1, Pace::Every(Duration::from_millis(500))),
    (3, 64, Pace::ClosedLoop),
    (128, 7, Pace::Every(Duration::from_millis(200))),
    (16, 33, Pace::Every(Duration::from_millis(50))),
];

/// Duration of each.
const ROUND: Duration = Duration::from_secs(3);

/// The result of a soak.
pub struct Soaked {
    /// Number of right answers.
    pub answered: u64,
    /// Last message of the program in the machine.
    pub said: String,
}

impl fmt::Display for Soaked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}; {} requests from outside, all answered rightly", self.said, self.answered)
    }
}

/// Runs a soak on the user's request.
///
/// # Errors
///
/// The message has the failure.
pub fn soak(context: &Context, arguments: &cli::Soak) -> Result<()> {
    let (toolchain, products) = context.build(Need::Boot)?;
    let log = context.log(PROGRAM);
    let soaked = run(context, &toolchain, &products, &arguments.machine, arguments.seconds, &log)?;
    println!("{soaked}");
    Ok(())
}

/// Boots, sends requests, and waits for the end.
///
/// # Errors
///
/// The machine fails, an answer was wrong or lost, or the counters are not as before.
pub fn run(
    context: &Context,
    toolchain: &Toolchain,
    products: &Products,
    machine: &cli::Machine,
    seconds: u64,
    log: &Path,
) -> Result<Soaked> {
    let port = guest::free_port()?;
    let command_line = command_line(PROGRAM, &[seconds.to_string()])?;
    let mut configuration = context.configuration(products, machine, command_line);
    configuration.forwards = vec![Forward { host: port, guest: SERVER_PORT }];
    let mut guest = Guest::start(&toolchain.qemu, &context.board, &configuration, log, Echo::LogOnly)?;

    let title = format!("Soaking for {seconds} s on {} harts", configuration.harts);
    let activity = context.progress.start_steps(title, seconds * 1000);
    let limit = BOOT_LIMIT + Duration::from_secs(seconds / 4);
    let left: u64 = guest.wait_for("its server", limit, |line| {
        activity.detail(line);
        line.strip_prefix(SERVING)?.strip_suffix(" s")?.parse().ok()
    })?;
    let answered = ask(&mut guest, port, Duration::from_secs(left), seconds * 1000, &activity)?;

    activity.detail("waiting for the end");
    let is_well = |line: &str| line.starts_with(WELL).then(|| line.to_string());
    let said = guest.wait_for("the soak's good end", END_LIMIT, is_well)?;
    guest.wait_for_end(END_LIMIT)?;
    activity.clear();
    Ok(Soaked { answered, said })
}

/// Sends requests for as long as there is time for another round; returns the number of right answers.
fn ask(guest: &mut Guest, port: u16, time: Duration, whole_ms: u64, activity: &Activity) -> Result<u64> {
    let start = Instant::now();
    let mut answered = 0;
    for (connections, order, pace) in ROUNDS.into_iter().cycle() {
        if start.elapsed() + ROUND > time {
            break;
        }
        let order = Order::new(order)?;
        let plan = Plan {
            server: guest::address(port),
            connections,
            order,
            pace,
            duration: ROUND,
            patience: PATIENCE,
            levels: 1,
        };
        let measurement = guest.ask(&plan, &mut |stage| {
            if matches!(stage, Stage::Sending(_)) {
                activity.advance_to(whole_ms.saturating_sub(time.saturating_sub(start.elapsed()).as_millis() as u64));
                activity.detail(&format!("{connections} connections, {answered} answers before"));
            }
        })?;
        if !measurement.is_faultless() {
            bail!(
                "of the requests by {connections} connections {} were answered wrongly and {} were lost{}. \
                 The machine's serial log is {}",
                measurement.wrong,
                measurement.lost,
                measurement
                    .first_failure
                    .map(|failure| format!(", the first because of {failure}"))
                    .unwrap_or_default(),
                guest.log().display()
            );
        }
        answered += measurement.answered;
    }
    Ok(answered)
}
