//! `profile`: a flame graph of the kernel and of the program that it starts.
//!
//! The machine runs with instructions counted, one hart in one thread of the host, and is stopped at short intervals
//! through QEMU's interface for gdb ([`Target`]). At each stop the program counter, the registers and the stack are
//! read, and the callers are found as for a backtrace: by frame pointers in the kernel, by the tables in the program's
//! file in the program. Nothing in the machine takes part, so nothing in it is disturbed: virtual time stands still
//! meanwhile.
//!
//! A sample is thus a moment of the emulator's time, not an instruction. While every instruction takes it about the
//! same time, a share of the samples is a share of the instructions; code that runs for the first time is translated,
//! and shows larger than it is. Counting by a QEMU plugin would be exact, but there is none in Debian's packages;
//! samples of the kernel's own tick could not show the kernel with interrupts off.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::board::{Clock, Configuration};
use crate::build::{self, Products};
use crate::callers::SymbolisedProgram;
use crate::cli;
use crate::context::{Context, command_line};
use crate::guest::{self, Echo, Guest};
use crate::interrupt;
use crate::own;
use crate::run::PROGRAM_ADDRESS;
use crate::symbols::Symbols;

/// The interval between two samples; a prime number of microseconds, so that it falls into step with nothing.
const INTERVAL: Duration = Duration::from_micros(1009);
/// Longest wait for an answer of the emulator.
const PATIENCE: Duration = Duration::from_secs(30);
/// Number of parts of a program's stack that are searched for callers.
const STACK_PARTS: usize = 4;
/// Size of such a part: as many bytes as fit into an answer.
const STACK_PART: u64 = 2048;
/// Largest number of callers of a sample.
const MAXIMUM_DEPTH: usize = 64;
/// Size of a page, at whose beginning an image lies.
const PAGE: u64 = 4096;
/// Name of the frame of code whose file is not known.
const UNKNOWN: &str = "another program";
/// Lowest address of the kernel.
const KERNEL: u64 = 0xffff_0000_0000_0000;
/// Lowest and highest address of the firmware.
const FIRMWARE: std::ops::Range<u64> = 0x8000_0000..0x8020_0000;
/// Registers by number.
const RA: usize = 1;
const SP: usize = 2;
const FP: usize = 8;
const PC: usize = 32;
const REGISTERS: usize = 33;

/// A machine behind QEMU's interface for gdb.
struct Target {
    stream: TcpStream,
    /// Bytes that were received and not used yet.
    received: Vec<u8>,
}

impl Target {
    fn connect(port: u16) -> Result<Target> {
        let begin = Instant::now();
        loop {
            match TcpStream::connect(guest::address(port)) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(PATIENCE))?;
                    return Ok(Target { stream, received: Vec::new() });
                }
                Err(error) if begin.elapsed() > PATIENCE => return Err(error).context("QEMU does not listen for gdb"),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn send(&mut self, packet: &str) -> Result<()> {
        Ok(self.stream.write_all(framed(packet).as_bytes())?)
    }

    /// Returns the content of the next packet, and acknowledges it.
    fn receive(&mut self) -> Result<String> {
        loop {
            if let Some((content, used)) = unframed(&self.received) {
                self.received.drain(..used);
                self.stream.write_all(b"+")?;
                return Ok(content);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes)? {
                0 => bail!("the machine has ended"),
                count => self.received.extend_from_slice(&bytes[..count]),
            }
        }
    }

    fn ask(&mut self, packet: &str) -> Result<String> {
        self.send(packet)?;
        self.receive()
    }

    /// Lets the machine run for an interval, and stops it.
    fn run_for(&mut self, interval: Duration) -> Result<()> {
        self.send("c")?;
        thread::sleep(interval);
        self.stream.write_all(&[3])?;
        loop {
            let answer = self.receive()?;
            match answer.chars().next() {
                Some('T' | 'S') => return Ok(()),
                Some('W' | 'X') => bail!("the machine has ended"),
                _ => {}
            }
        }
    }

    fn registers(&mut self) -> Result<[u64; REGISTERS]> {
        let bytes = decode(&self.ask("g")?);
        let mut words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        let registers = [(); REGISTERS].map(|()| words.next().unwrap_or(0));
        if bytes.len() < 8 * REGISTERS {
            bail!("QEMU does not tell the registers of a 64-bit machine");
        }
        Ok(registers)
    }

    /// Reads memory as the running code sees it; what is not mapped is missing.
    fn memory(&mut self, address: u64, length: usize) -> Result<Vec<u8>> {
        let answer = self.ask(&format!("m{address:x},{length:x}"))?;
        Ok(if answer.starts_with('E') { Vec::new() } else { decode(&answer) })
    }

    fn words(&mut self, address: u64, count: usize) -> Result<Vec<u64>> {
        let bytes = self.memory(address, 8 * count)?;
        Ok(bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default())).collect())
    }
}

/// A packet of gdb's protocol: the sum of its bytes behind it.
fn framed(packet: &str) -> String {
    let sum = packet.bytes().fold(0u8, u8::wrapping_add);
    format!("${packet}#{sum:02x}")
}

/// Returns the content of the first packet, and the number of bytes up to its end.
fn unframed(bytes: &[u8]) -> Option<(String, usize)> {
    let start = bytes.iter().position(|byte| *byte == b'$')? + 1;
    let end = start + bytes[start..].iter().position(|byte| *byte == b'#')?;
    (bytes.len() >= end + 3).then(|| (String::from_utf8_lossy(&bytes[start..end]).into_owned(), end + 3))
}

fn decode(hexadecimal: &str) -> Vec<u8> {
    let digit = |byte: &u8| (*byte as char).to_digit(16).unwrap_or(0) as u8;
    hexadecimal.as_bytes().chunks_exact(2).map(|pair| digit(&pair[0]) << 4 | digit(&pair[1])).collect()
}

/// The code of a machine, and the samples of it.
pub struct Sampler {
    kernel: Symbols,
    /// The scheduler's image, which the kernel and each process have at an address of their own.
    scheduler: Symbols,
    scheduler_size: u64,
    name: String,
    program: SymbolisedProgram,
    /// Samples by their stack, outermost first, with `;` between two functions.
    stacks: BTreeMap<String, u64>,
}

impl Sampler {
    /// Reads the code of products, of which the machine's first program is `name`.
    ///
    /// # Errors
    ///
    /// There is no such program, or a file cannot be read.
    pub fn new(context: &Context, products: &Products, name: &str) -> Result<Sampler> {
        let Some((_, file)) = products.files.iter().find(|(other, _)| other == name) else {
            bail!("there is no program `{name}`; there are: {}", products.programs.join(", "));
        };
        let scheduler = build::vdso_symbols(&context.workspace);
        Ok(Sampler {
            kernel: Symbols::load(&products.kernel)?,
            scheduler_size: scheduler.with_extension("").metadata()?.len(),
            scheduler: Symbols::load(&scheduler)?,
            name: name.into(),
            program: SymbolisedProgram::load(file)?,
            stacks: BTreeMap::new(),
        })
    }

    /// Boots a machine with one hart and takes samples of it until its end, or as long as `goes_on`, which is asked
    /// after each. Returns whether the machine has ended.
    ///
    /// # Errors
    ///
    /// The machine cannot be started or ends with a failure, or QEMU does not answer.
    pub fn run(
        &mut self,
        context: &Context,
        qemu: &Path,
        mut configuration: Configuration,
        log: &Path,
        mut goes_on: impl FnMut(&Sampler) -> bool,
    ) -> Result<bool> {
        configuration.harts = 1;
        configuration.set_clock(Clock::Instructions);
        let port = guest::free_port()?;
        configuration.gdb_port = Some(port);
        let mut machine = Guest::start(qemu, &context.board, &configuration, log, Echo::LogOnly)?;
        let mut target = Target::connect(port)?;
        while goes_on(self) {
            interrupt::stand_still_if_requested();
            // The machine ends in the middle of an exchange.
            if let Err(error) = target.run_for(INTERVAL).and_then(|()| self.sample(&mut target)) {
                machine.wait_for_end(PATIENCE).with_context(|| format!("{error:#}"))?;
                return Ok(true);
            }
        }
        machine.end();
        Ok(false)
    }

    /// Returns the number of samples.
    fn samples(&self) -> u64 {
        self.stacks.values().sum()
    }

    /// Returns whether there is a sample with all of these functions, the outer ones first.
    pub fn has(&self, functions: &[&str]) -> bool {
        self.stacks.keys().any(|stack| {
            let mut frames = stack.split(';');
            functions.iter().all(|function| frames.any(|frame| frame.contains(function)))
        })
    }

    /// Takes one sample.
    fn sample(&mut self, target: &mut Target) -> Result<()> {
        let registers = target.registers()?;
        let mut frames = match registers[PC] {
            pc if pc >= KERNEL => self.in_kernel(target, pc, registers[RA], registers[FP])?,
            pc if FIRMWARE.contains(&pc) => vec!["firmware".into()],
            pc => self.in_program(target, pc, registers[RA], registers[SP])?,
        };
        frames.reverse();
        *self.stacks.entry(frames.join(";")).or_default() += 1;
        Ok(())
    }

    /// Returns the kernel's functions, innermost first.
    fn in_kernel(&self, target: &mut Target, pc: u64, ra: u64, mut frame: u64) -> Result<Vec<String>> {
        let mut frames = names(self.kernel.functions_at(pc));
        if frames.is_empty() {
            frames = self.in_scheduler(target, pc)?;
            let callers = names(self.kernel.functions_at(ra.wrapping_sub(1)));
            if callers.is_empty() {
                // The image has no frame pointers, and deep in it the register has anything.
                frames.extend(["a caller that is not known".into(), "kernel".into()]);
                return Ok(frames);
            }
            // The pointer is still that of the function which has called the image, and names the caller of that one.
            frames.extend(callers);
        }
        for _ in 0..MAXIMUM_DEPTH {
            // The return address and the frame pointer of the caller lie below a frame's address.
            if frame < KERNEL || !frame.is_multiple_of(8) {
                break;
            }
            let &[caller, address] = &target.words(frame - 16, 2)?[..] else { break };
            let functions = names(self.kernel.functions_at(address.wrapping_sub(1)));
            if address < KERNEL || functions.is_empty() || caller <= frame {
                frames.extend(functions);
                break;
            }
            frames.extend(functions);
            frame = caller;
        }
        frames.push("kernel".into());
        Ok(frames)
    }

    /// Returns the functions of the scheduler's image, innermost first; the image begins with its ELF header, at most
    /// its size below.
    fn in_scheduler(&self, target: &mut Target, pc: u64) -> Result<Vec<String>> {
        for distance in (0..self.scheduler_size).step_by(PAGE as usize) {
            let Some(start) = (pc & !(PAGE - 1)).checked_sub(distance) else { break };
            if target.memory(start, 4)? == b"\x7fELF" {
                let functions = names(self.scheduler.functions_at(pc - start));
                return Ok(if functions.is_empty() { vec![UNKNOWN.into()] } else { functions });
            }
        }
        Ok(vec![UNKNOWN.into()])
    }

    /// Returns the program's functions, innermost first.
    fn in_program(&self, target: &mut Target, pc: u64, ra: u64, sp: u64) -> Result<Vec<String>> {
        let in_file = |address: u64| address.wrapping_sub(PROGRAM_ADDRESS);
        let is_code = |address: &u64| !self.program.functions_at(in_file(*address).wrapping_sub(1)).is_empty();
        let mut words = Vec::new();
        // The program chooses its stack pointer.
        let (mut start, mut size) = (sp, STACK_PART - sp % STACK_PART);
        for _ in 0..STACK_PARTS {
            let read = target.words(start, (size / 8) as usize)?;
            if read.is_empty() {
                break;
            }
            words.extend(read);
            (start, size) = (start.wrapping_add(size), STACK_PART);
        }
        let candidates = words.iter().enumerate().filter(|(_, word)| is_code(word));
        let candidates: Vec<_> = candidates.map(|(place, word)| (8 * place as u64, in_file(*word))).collect();
        let return_address = if is_code(&ra) { in_file(ra) } else { 0 };
        let calls = self.program.callers(in_file(pc), return_address, &candidates);
        let mut frames = Vec::new();
        if self.program.functions_at(in_file(pc)).is_empty() {
            frames = self.in_scheduler(target, pc)?;
        }
        frames.extend(calls.into_iter().flat_map(|address| names(self.program.functions_at(address))));
        frames.push(self.name.clone());
        Ok(frames)
    }
}

/// Leaves the lines out of functions, and the marks that have a meaning in stacks. The compiler's tables have only the
/// last part of the name of a function that was inlined, so its file says where it is from.
pub fn names(functions: Vec<String>) -> Vec<String> {
    let name = |function: String| {
        let function = function.replace(';', ",");
        let Some((name, place)) = function.rsplit_once(" (") else { return function };
        match place.rsplit_once(':') {
            Some((file, _)) if !name.contains("::") => format!("{name} ({file})"),
            _ => name.to_string(),
        }
    };
    functions.into_iter().map(name).collect()
}

/// Runs a program and draws the flame graph.
///
/// # Errors
///
/// The program cannot be built or started, QEMU does not answer, or there is no sample.
pub fn profile(context: &Context, arguments: &cli::Profile) -> Result<()> {
    if arguments.boot.machine.harts.is_some_and(|harts| harts != 1) {
        bail!("a profile is of one hart: its clock counts instructions, which QEMU does for one hart at a time");
    }
    let (toolchain, products, name) = own::prepare(context, &arguments.program, &[])?;
    let words = arguments.boot.scheduling.words() + &command_line(&name, &arguments.arguments)?;
    let mut configuration = context.configuration(&products, &arguments.boot.machine, words);
    arguments.boot.connect(&mut configuration)?;
    let log = context.log("profile");
    let activity = context.progress.start(format!("Running {name}, for {} s at most", arguments.limit));
    let mut sampler = Sampler::new(context, &products, &name)?;
    let (begin, limit) = (Instant::now(), Duration::from_secs(arguments.limit));
    interrupt::spare_first();
    let ended = sampler.run(context, &toolchain.qemu, configuration, &log, |sampler| {
        activity.detail(&format!("{} samples", sampler.samples()));
        begin.elapsed() < limit && !interrupt::ends_observation()
    })?;
    activity.clear();
    let (samples, kernel) = (sampler.samples(), of_kernel(&sampler.stacks));
    if samples == 0 {
        bail!("the machine ended before the first sample; its output is {}", log.display());
    }
    let graph = draw(&sampler.stacks, &name, "samples")?;
    let output = arguments.output.clone().unwrap_or_else(|| context.workspace.products().join("profile.svg"));
    std::fs::write(&output, graph).with_context(|| format!("cannot write {}", output.display()))?;
    let end = if ended { "to its end" } else { "until Ctrl-C or the limit, which `--limit` sets" };
    println!("{samples} samples of {name} {end}; {kernel} of them in the kernel");
    println!("{}", output.display());
    Ok(())
}

fn of_kernel(stacks: &BTreeMap<String, u64>) -> u64 {
    stacks.iter().filter(|(stack, _)| stack.starts_with("kernel")).map(|(_, count)| count).sum()
}

/// Draws the stacks as a flame graph. `unit` is that of their counts.
///
/// # Errors
///
/// There is nothing to draw.
pub fn draw(stacks: &BTreeMap<String, u64>, name: &str, unit: &str) -> Result<Vec<u8>> {
    let mut options = inferno::flamegraph::Options::default();
    options.title = format!("{name} on COPS, with its kernel");
    options.count_name = unit.into();
    options.deterministic = true;
    let lines: Vec<_> = stacks.iter().map(|(stack, count)| format!("{stack} {count}")).collect();
    let mut graph = Vec::new();
    inferno::flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut graph)?;
    Ok(graph)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_framed_and_found_between_acknowledgements() {
        assert_eq!(framed("g"), "$g#67");
        assert_eq!(
            framed("m80200000,10"),
            format!("$m80200000,10#{:02x}", "m80200000,10".bytes().map(u32::from).sum::<u32>() as u8)
        );
        assert_eq!(unframed(b"+$OK#9a+$T05#b9"), Some(("OK".into(), 7)));
        for part in [&b""[..], b"+", b"$OK", b"$OK#9", b"OK#9a"] {
            assert_eq!(unframed(part), None);
        }
        assert_eq!((decode("00ff10"), decode(""), decode("1")), (vec![0, 255, 16], vec![], vec![]));
    }

    #[test]
    fn functions_lose_their_lines_and_keep_their_names() {
        let functions = ["core::fmt::write (mod.rs:10)", "<T as U>::f", "a;b (c.rs:1)"].map(String::from).to_vec();
        assert_eq!(names(functions), ["core::fmt::write", "<T as U>::f", "a,b (c.rs)"]);
    }

    #[test]
    fn stacks_become_a_graph() {
        let stacks = BTreeMap::from([("kernel;idle".into(), 3), ("hello;main;work".to_string(), 7)]);
        let graph = String::from_utf8(draw(&stacks, "hello", "samples").unwrap()).unwrap();
        assert!(graph.contains("hello on COPS") && graph.contains("work (7 samples, 70.00%)"), "{graph}");
        assert_eq!(of_kernel(&stacks), 3);
    }
}
