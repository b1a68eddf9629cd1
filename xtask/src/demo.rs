//! The demonstration: boot, ask, check every answer, show the figures.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use load::{Measurement, Order, Pace, Plan, ProbeError, Stage};

use crate::board::Configuration;
use crate::build::Products;
use crate::cli;
use crate::context::{Context as Tools, Need};
use crate::guest::{self, Echo, Failure, FailureKind, Forward, Guest};
use crate::progress::Activity;
use crate::report::{self, Conditions, ReportPage, Row};
use crate::toolchain::Toolchain;
use crate::workspace::{Kernel, write_if_changed};

/// The serving program, and the port on which it listens.
const SERVER: &str = "matrix-server";
const SERVER_PORT: u16 = 7000;

/// The root task of the microkernel that starts its counterpart.
const ROOT_TASK: &str = "network-system";

/// The line in which the server announces that it listens, up to the address.
const LISTENING: &str = "matrix-server: listening on";

/// Rows and columns of the matrices: those of the papers' measurements.
const ORDER: u32 = 15;

/// The time between two requests of a connection.
const INTERVAL: Duration = Duration::from_millis(100);

/// Longest time until the server listens, and then until it answers.
const BOOT_LIMIT: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// Longest time of an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Number of further tries when another process was quicker to take the port.
const PORT_ATTEMPTS: usize = 3;

/// Connections of the closed loop.
const PEAK_CONNECTIONS: usize = 64;

/// The measurements of the demonstration.
struct Programme {
    rows: Vec<(usize, Pace)>,
    duration: Duration,
}

impl Programme {
    /// Creates the short or the long programme, or one of `connections` if there are any.
    fn new(quick: bool, connections: &[u16]) -> Programme {
        let every = |connections| (connections, Pace::Every(INTERVAL));
        let usual: Vec<usize> = if quick { vec![1, 16, 64] } else { (0..=8).map(|power| 1 << power).collect() };
        let chosen: Vec<usize> = connections.iter().map(|connections| usize::from(*connections)).collect();
        let mut rows: Vec<_> = if chosen.is_empty() { usual } else { chosen }.into_iter().map(every).collect();
        if quick {
            return Programme { rows, duration: Duration::from_secs(1) };
        }
        rows.push((PEAK_CONNECTIONS, Pace::ClosedLoop));
        Programme { rows, duration: Duration::from_secs(5) }
    }

    /// Returns the length of the programme in milliseconds, without delays.
    fn length_ms(&self) -> u64 {
        self.rows.len() as u64 * self.duration.as_millis() as u64
    }
}

/// Runs the demonstration.
///
/// # Errors
///
/// The machine or a part of the demonstration failed, or a request got a wrong answer.
pub fn demo(tools: &Tools, arguments: &cli::Demo) -> Result<()> {
    let (toolchain, products, command_line) = match arguments.kernel {
        Kernel::Unix => unix(tools, arguments)?,
        Kernel::Micro => micro(tools, arguments)?,
    };
    let name = match arguments.kernel {
        Kernel::Unix => "demo",
        Kernel::Micro => "demo-micro",
    };
    let log = tools.workspace.logs().join(format!("{name}.log"));
    let mut served = serve(tools, arguments, &toolchain, &products, &command_line, &log)?;

    let programme = Programme::new(arguments.quick, &arguments.connections);
    let mut report = ReportPage {
        rows: Vec::new(),
        peak: None,
        conditions: conditions(tools, arguments.kernel, &toolchain, &served, &programme),
    };
    let first_failure = ask(tools, &mut served, &programme, &mut report)?;
    // A failure of the machine explains failures of the answers.
    let after = served.guest.check();
    served.guest.end();

    print!("{}", report.table());
    if let Some(file) = &arguments.json {
        std::fs::write(file, report.json()).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let html = arguments.html.clone().unwrap_or_else(|| tools.workspace.products().join(format!("{name}.html")));
    write_if_changed(&html, report.html().as_bytes())?;
    after?;
    verdict(&report, programme.rows.len(), first_failure, &log)?;
    println!("\nEvery request was answered and every answer verified. The report is");
    println!("{}", html.display());
    Ok(())
}

/// A machine with a server that answers.
struct Served {
    guest: Guest,
    /// Port of this host that is forwarded to the server.
    port: u16,
    configuration: Configuration,
    /// Time from the start of the emulator to the first answer.
    boot: Duration,
}

/// Boots the machine with its server; on another port if a free one is taken in the meantime.
fn serve(
    tools: &Tools,
    arguments: &cli::Demo,
    toolchain: &Toolchain,
    products: &Products,
    command_line: &str,
    log: &Path,
) -> Result<Served> {
    let mut attempts = PORT_ATTEMPTS;
    loop {
        attempts -= 1;
        let port = match arguments.port {
            Some(port) => port,
            None => guest::free_port()?,
        };
        let mut configuration = tools.configuration(products, &arguments.machine, command_line.to_string());
        configuration.forwards = vec![Forward { host: port, guest: SERVER_PORT }];
        let started = Instant::now();
        let mut guest = Guest::start(&toolchain.qemu, &tools.board, &configuration, log, Echo::LogOnly)?;
        match boot(tools, &mut guest, port, configuration.harts) {
            Ok(()) => return Ok(Served { guest, port, configuration, boot: started.elapsed() }),
            // Another process took the port between our look for a free one and QEMU's use of it.
            Err(error) if arguments.port.is_none() && attempts > 0 && is_port_in_use(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the conditions of the measurement, for the report.
fn conditions(
    tools: &Tools,
    kernel: Kernel,
    toolchain: &Toolchain,
    served: &Served,
    programme: &Programme,
) -> Conditions {
    let configuration = &served.configuration;
    Conditions {
        commit: report::commit(&tools.workspace.root),
        machine: match kernel {
            Kernel::Unix => format!("{} {}", tools.board.name, configuration.machine),
            Kernel::Micro => format!("{} {}, microkernel", tools.board.name, configuration.machine),
        },
        harts: configuration.harts,
        memory: configuration.memory.clone(),
        emulator: toolchain.qemu_version(),
        host_cores: std::thread::available_parallelism().map_or(1, usize::from),
        boot_to_first_answer_s: served.boot.as_secs_f64(),
        matrix_order: ORDER as usize,
        interval_ms: INTERVAL.as_millis() as u64,
        duration_s: programme.duration.as_secs_f64(),
    }
}

/// Measures the programme's rows, as long as the server answers; returns the first failure of an answer.
fn ask(tools: &Tools, served: &mut Served, programme: &Programme, report: &mut ReportPage) -> Result<Option<String>> {
    let mut first_failure = None;
    let activity = tools.progress.start_steps("Asking", programme.length_ms());
    for (index, &(connections, pace)) in programme.rows.iter().enumerate() {
        let plan = Plan {
            server: guest::address(served.port),
            connections,
            order: Order::new(ORDER)?,
            pace,
            duration: programme.duration,
            patience: PATIENCE,
            levels: 1,
        };
        let before = index as u64 * programme.duration.as_millis() as u64;
        let measurement = measure(&plan, &mut served.guest, &activity, before)?;
        let row = Row::new(&measurement);
        let silent = row.answered == 0;
        first_failure = first_failure.or(measurement.first_failure);
        match pace {
            Pace::ClosedLoop => report.peak = Some(row),
            Pace::Every(_) | Pace::Pause(_) => report.rows.push(row),
        }
        if silent {
            break;
        }
    }
    activity.clear();
    Ok(first_failure)
}

/// Builds the Unix kernel with its server.
fn unix(tools: &Tools, arguments: &cli::Demo) -> Result<(Toolchain, Products, String)> {
    let (toolchain, products) = tools.build(Need::Boot)?;
    if !products.programs.iter().any(|program| program == SERVER) {
        bail!("the workspace has no program `{SERVER}`");
    }
    let command_line = match &arguments.model {
        Some(model) => format!("init=/bin/{SERVER} -- --model {}", model.name()),
        None => format!("init=/bin/{SERVER}"),
    };
    Ok((toolchain, products, command_line))
}

/// Builds the microkernel with its network server and services.
fn micro(tools: &Tools, arguments: &cli::Demo) -> Result<(Toolchain, Products, String)> {
    if arguments.model.is_some() {
        bail!("models are the Unix kernel's: the microkernel has one");
    }
    let (toolchain, products) = tools.build_root_task(tools.variation(&arguments.machine), ROOT_TASK)?;
    Ok((toolchain, products, String::new()))
}

/// Waits until the server answers.
fn boot(tools: &Tools, guest: &mut Guest, port: u16, harts: u8) -> Result<()> {
    let plural = if harts == 1 { "" } else { "s" };
    let activity = tools.progress.start(format!("Booting COPS on {harts} hart{plural}"));
    guest.wait_for("the first words of the matrix server", BOOT_LIMIT, |line| {
        activity.detail(line);
        line.contains(LISTENING).then_some(())
    })?;
    activity.detail("waiting for the first answer");
    let deadline = Instant::now() + ANSWER_LIMIT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let error = match load::probe(guest::address(port), Order::MINIMUM, left) {
            Ok(()) => break,
            Err(error) => error,
        };
        guest.check()?;
        if matches!(error, ProbeError::WrongAnswer) || Instant::now() >= deadline {
            bail!(
                "the matrix server says that it listens, and yet its first request had {error}. \
                 The machine's serial log is {}",
                guest.log().display()
            );
        }
        // The server may listen a moment after its announcement.
        thread::sleep(Duration::from_millis(100));
    }
    activity.clear();
    Ok(())
}

fn is_port_in_use(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<Failure>(), Some(Failure { kind: FailureKind::PortInUse(_), .. }))
}

fn measure(plan: &Plan, guest: &mut Guest, activity: &Activity, before: u64) -> Result<Measurement> {
    let what = match plan.pace {
        Pace::Every(_) => format!("{} connections", plan.connections),
        Pace::ClosedLoop | Pace::Pause(_) => format!("{} connections, closed loop", plan.connections),
    };
    guest.ask(plan, &mut |stage| match stage {
        Stage::Connecting(established) => activity.detail(&format!("{what}: {established} connected")),
        Stage::Sending(time) => {
            activity.advance_to(before + time.as_millis() as u64);
            activity.detail(&what);
        }
        Stage::Waiting(requests) => activity.detail(&format!("{what}: waiting for {requests} answers")),
    })
}

fn verdict(report: &ReportPage, rows: usize, first_failure: Option<String>, log: &Path) -> Result<()> {
    let measured = report.all().count();
    if report.is_faultless() && measured == rows {
        return Ok(());
    }
    let wrong: u64 = report.all().map(|row| row.wrong).sum();
    let lost: u64 = report.all().map(|row| row.lost).sum();
    let first = first_failure.map(|failure| format!(" The first failure: {failure}.")).unwrap_or_default();
    bail!(
        "{wrong} requests were answered wrongly and {lost} were lost, in {measured} of {rows} rows.{first} \
         The machine's serial log is {}",
        log.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programme_is_the_documented_one() {
        let full = Programme::new(false, &[]);
        let connections: Vec<_> = full.rows.iter().map(|row| row.0).collect();
        assert_eq!(connections, [1, 2, 4, 8, 16, 32, 64, 128, 256, PEAK_CONNECTIONS]);
        assert_eq!(full.rows.iter().filter(|row| row.1 == Pace::ClosedLoop).count(), 1);
        assert_eq!(full.length_ms(), 50_000);
        let quick = Programme::new(true, &[]);
        assert_eq!(quick.rows.iter().map(|row| row.0).collect::<Vec<_>>(), [1, 16, 64]);
        assert_eq!(quick.length_ms(), 3000);
        let chosen = Programme::new(true, &[1024, 2]);
        assert_eq!(chosen.rows.iter().map(|row| row.0).collect::<Vec<_>>(), [1024, 2]);
    }
}
