//! The shell's own commands: those that change the shell, and small ones that never wait for long.

use alloc::ffi::CString;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use abi_unix::Counter;
use abi_unix::types::mounting::flag;
use abi_unix::types::{mode, signal};
use command_line::file_systems::{self, Bind, ListedFileSystem, Options};
use command_line::is_name;
use cops::Errno;
use cops::system::{file, process, terminal};

use crate::run::{self, Ran, Stop};
use crate::state::{State, Variable};

pub const NAMES: &[&str] = &[
    ".", ":", "[", "bg", "break", "cd", "continue", "counters", "echo", "exit", "export", "false", "fg", "help",
    "jobs", "kill", "local", "mount", "pwd", "read", "return", "shift", "test", "true", "umount", "unset", "wait",
    "where",
];

/// Commands that no function replaces.
const SPECIAL: [&str; 10] = [".", ":", "break", "continue", "exit", "export", "local", "return", "shift", "unset"];

const HELP: &str = "\
A command is a program of PATH, a path of one, a tool or a command of the shell:
  tools      cat, cp, env, grep, head, ls, mkdir, mv, ps, rm, seq, sleep, touch, wc
  shell      cd, echo, exit, export, kill, local, pwd, read, return, shift, test, true, false, unset, . FILE
  jobs       jobs, wait, bg and fg [%JOB] go on in the background or foreground with a job that Ctrl-Z has stopped
  mount DEVICE DIRECTORY [ro]   mounts a volume of ext4 umount DIRECTORY   writes it and takes it away
  mount -a   mounts what /etc/fstab lists, as the first shell does at its start
  mount --bind FILE PLACE   shows a directory or a file in another place, too; --rbind with all that is mounted below
  mount -o remount,OPTIONS DIRECTORY   changes a mount: ro, rw; with bind this one alone
  counters   prints the kernel's counters              where [PID]   prints where all workers and coroutines are
a | b        the output of a is the input of b       a && b, a || b   b if a has succeeded, or failed
a &          a in the background                     a > f, >> f, < f, 2> f, 2>&1   files for a
$X ${X} $? $$ $# $1 $@ $(a)   values                 'a' \"$a\" \\a    quotes        * ? [a-c]   names of files
${X:-a} ${X:=a} ${X:?a} ${X:+a} ${#X} ${X#a} ${X##a} ${X%a} ${X%%a} $((1 + X))   changed values
if a; then b; else c; fi      while a; do b; done    for X in a b; do c; done      (a; b)   { a; b; }
case a in b|c) d;; esac       f() { a; }             a <<E   the lines below, up to E, for a
";

/// Greatest number of files within each other that `.` runs.
const MOST_SOURCES: usize = 16;

/// Returns whether the shell has such a command.
pub fn is_command(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Returns whether a command of the shell cannot be the name of a function.
pub fn is_special(name: &str) -> bool {
    SPECIAL.contains(&name)
}

/// Runs one of [`NAMES`].
pub async fn run(state: &mut State, words: &[String]) -> Ran {
    let (name, arguments) = (&*words[0], &words[1..]);
    let status = match name {
        "true" | ":" => 0,
        "false" => 1,
        "exit" => return exit(state, arguments).await,
        "break" | "continue" => return leave_loop(state, name, arguments).await,
        "return" => return leave_function(state, arguments).await,
        "." => return source(state, arguments).await,
        "wait" => return wait(state, arguments).await,
        "fg" => return foreground(state, arguments).await,
        "read" => return read(state, arguments).await,
        "test" | "[" => test(state, name, arguments).await,
        "mount" if arguments == ["-a"] => match mount_all().await {
            Ok(()) => 0,
            Err(message) => state.complain(alloc::format!("mount: {message}")).await,
        },
        _ => match quick(state, name, arguments) {
            Ok(text) => match state.print(&text).await {
                // The reader has gone; it needs no message.
                Ok(()) => 0,
                Err(Errno::EPIPE) => 1,
                Err(error) => state.complain(alloc::format!("{name}: {error}")).await,
            },
            Err(message) => state.complain(alloc::format!("{name}: {message}")).await,
        },
    };
    Ok(status)
}

/// Runs commands that do not wait, and returns their output.
fn quick(state: &mut State, name: &str, arguments: &[String]) -> Result<String, String> {
    let mut text = String::new();
    match name {
        "echo" => {
            let is_without_end = arguments.first().is_some_and(|first| first == "-n");
            text = arguments[usize::from(is_without_end)..].join(" ");
            if !is_without_end {
                text.push('\n');
            }
        }
        "pwd" => text = alloc::format!("{}\n", state.directory),
        "cd" => change_directory(state, arguments)?,
        "mount" | "umount" => mount(state, name, arguments)?,
        "help" => text = HELP.into(),
        "jobs" => {
            text = state.jobs.list();
        }
        "bg" => {
            let (number, job) = state.jobs.resume(job_of(state, arguments)?).ok_or(NO_JOB)?;
            text = alloc::format!("[{number}] {job} &\n");
        }
        "kill" => kill(state, arguments)?,
        "shift" => {
            if state.parameters.len() > 1 {
                state.parameters.remove(1);
            } else {
                return Err("there is no parameter".into());
            }
        }
        "export" => text = export(state, arguments)?,
        "local" => local(state, arguments)?,
        "unset" => arguments.iter().for_each(|name| {
            if state.variables.remove(name).is_none() {
                state.functions.remove(name);
            }
        }),
        "where" => {
            let process = match arguments {
                [] => 0,
                [process] => process.parse().map_err(|_| alloc::format!("not a process's number: {process}"))?,
                _ => return Err("more than one process".into()),
            };
            cops::system::trace::tell_positions(process).map_err(|error| error.to_string())?;
        }
        "counters" => {
            let values = cops::system::system::counters().map_err(|error| error.to_string())?;
            for (counter, value) in Counter::ALL.iter().zip(values) {
                text += &alloc::format!("{:<22} {value}\n", counter.name());
            }
        }
        _ => {}
    }
    Ok(text)
}

fn change_directory(state: &mut State, arguments: &[String]) -> Result<(), String> {
    let path = match arguments {
        [] => state.variable("HOME"),
        [path] => path,
        _ => return Err("more than one directory".into()),
    };
    let path = if path.is_empty() { "/".to_string() } else { path.to_string() };
    state.enter();
    cops::file::set_current_dir(&path).map_err(|error| alloc::format!("{path}: {error}"))?;
    state.directory = cops::file::current_dir().map_err(|error| alloc::format!("{path}: {error}"))?;
    Ok(())
}

/// Mounts the volume of a disk on a directory, which is made if it is missing; or unmounts it.
fn mount(state: &State, name: &str, arguments: &[String]) -> Result<(), String> {
    let text = |text: &str| CString::new(text).map_err(|_| "a name contains a NUL".to_string());
    state.enter();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (path, done) = match (name, &arguments[..]) {
        ("umount", [directory]) => (directory, file::unmount(&text(directory)?, 0)),
        ("mount", [device, directory, how @ ..]) if how.iter().all(|how| *how == "ro") && !device.starts_with('-') => {
            let flags = if how.is_empty() { 0 } else { flag::READ_ONLY };
            let _ = cops::file::create_dir(directory);
            (device, file::mount_device(&text(device)?, &text(directory)?, c"ext4", flags))
        }
        ("mount", ["--bind", source, place]) => (source, bind(source, place, Bind::File, false)),
        ("mount", ["--rbind", source, place]) => (source, bind(source, place, Bind::All, false)),
        ("mount", ["-o", options, place]) if Options::of(options).is_remount => (place, remount(place, options)),
        ("mount", ["-o", options, source, place]) if Options::of(options).bind != Bind::None => {
            let options = Options::of(options);
            (source, bind(source, place, options.bind, options.is_read_only))
        }
        _ => {
            return Err("usage: mount DEVICE DIRECTORY [ro], mount --bind FILE PLACE, \
            mount -o remount,OPTIONS DIRECTORY, mount -a, umount DIRECTORY"
                .into());
        }
    };
    done.map_err(|error| alloc::format!("{path}: {error}"))
}

/// Shows a file in another place, too, perhaps for reading alone.
fn bind(source: &str, place: &str, bind: Bind, is_read_only: bool) -> Result<(), Errno> {
    let text = |text: &str| CString::new(text).map_err(|_| Errno::EINVAL);
    let (source, place) = (text(source)?, text(place)?);
    let flags = if bind == Bind::All { flag::RECURSIVE } else { 0 };
    file::bind(&source, &place, flags)?;
    if is_read_only { file::bind(&source, &place, flag::REMOUNT | flag::READ_ONLY) } else { Ok(()) }
}

/// Changes the mount at a place.
fn remount(place: &str, options: &str) -> Result<(), Errno> {
    let text = |text: &str| CString::new(text).map_err(|_| Errno::EINVAL);
    let options = Options::of(options);
    let flags = flag::REMOUNT | if options.is_read_only { flag::READ_ONLY } else { 0 };
    match options.bind {
        Bind::None => file::mount(&text(place)?, c"none", flags, &text(&options.own)?),
        Bind::File | Bind::All => file::bind(c"none", &text(place)?, flags),
    }
}

/// The list of file systems that are mounted at the start.
const LIST: &str = "/etc/fstab";

/// Mounts the file systems of [`LIST`] that are not mounted; says which cannot be, and why.
async fn mount_all() -> Result<(), String> {
    let list = cops::file::read_to_string(LIST).await.map_err(|error| alloc::format!("{LIST}: {error}"))?;
    let mounted = cops::file::read_to_string("/proc/mounts").await.unwrap_or_default();
    let is_mounted = |directory: &str| mounted.lines().any(|line| line.split(' ').nth(1) == Some(directory));
    let mut failed = 0;
    for listed in file_systems::listed(&list) {
        if is_mounted(&listed.directory) {
            continue;
        }
        if let Err(error) = mount_listed(&listed) {
            cops::eprintln!("mount: {} on {}: {error}", listed.device, listed.directory);
            failed += 1;
        }
    }
    if failed == 0 { Ok(()) } else { Err(alloc::format!("{failed} file systems are not mounted")) }
}

fn mount_listed(listed: &ListedFileSystem) -> Result<(), Errno> {
    let text = |text: &str| CString::new(text).map_err(|_| Errno::EINVAL);
    let (directory, kind) = (text(&listed.directory)?, text(&listed.kind)?);
    let flags = if listed.is_read_only { flag::READ_ONLY } else { 0 };
    if listed.bind != Bind::None {
        return bind(&listed.device, &listed.directory, listed.bind, listed.is_read_only);
    }
    match listed.device.starts_with('/') {
        true if listed.options.is_empty() => file::mount_device(&text(&listed.device)?, &directory, &kind, flags),
        true => Err(Errno::EINVAL),
        false => file::mount(&directory, &kind, flags, &text(&listed.options)?),
    }
}

/// Mounts the file systems of the list, if there is one, for a shell that is the first process.
pub async fn mount_at_start() {
    if process::number() == 1
        && cops::file::metadata(LIST).is_ok()
        && let Err(error) = mount_all().await
    {
        cops::eprintln!("mount: {error}");
    }
}

/// Puts variables aside until the end of the function.
fn local(state: &mut State, arguments: &[String]) -> Result<(), String> {
    for argument in arguments {
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, value),
            None => (&**argument, ""),
        };
        if !is_name(name) {
            return Err(alloc::format!("`{name}` is no name of a variable"));
        }
        if !state.make_local(name, value.into()) {
            return Err("there is no function".into());
        }
    }
    Ok(())
}

fn export(state: &mut State, arguments: &[String]) -> Result<String, String> {
    if arguments.is_empty() {
        let exported = state.variables.iter().filter(|(_, variable)| variable.is_exported);
        return Ok(exported.map(|(name, variable)| alloc::format!("{name}={}\n", variable.value)).collect());
    }
    for argument in arguments {
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, value.to_string()),
            None => (&**argument, state.variable(argument).to_string()),
        };
        if !is_name(name) {
            return Err(alloc::format!("`{name}` is no name of a variable"));
        }
        state.variables.insert(name.into(), Variable { value, is_exported: true });
    }
    Ok(String::new())
}

const SIGNALS: [(&str, u32); 8] = [
    ("HUP", signal::HUP),
    ("INT", signal::INT),
    ("QUIT", signal::QUIT),
    ("KILL", signal::KILL),
    ("TERM", signal::TERM),
    ("CONT", signal::CONT),
    ("STOP", signal::STOP),
    ("TSTP", signal::TSTP),
];

fn kill(state: &State, arguments: &[String]) -> Result<(), String> {
    let (signal, targets) = match arguments {
        [first, rest @ ..] if first.starts_with('-') => {
            let name = &first[1..];
            let named = SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
            let number = named.or_else(|| name.parse().ok());
            (number.ok_or_else(|| alloc::format!("`{name}` is no signal"))?, rest)
        }
        all => (signal::TERM, all),
    };
    if targets.is_empty() {
        return Err("usage: kill [-SIGNAL] PROCESS|%JOB...".into());
    }
    for target in targets {
        let result = match target.strip_prefix('%') {
            Some(job) => {
                let job = job.parse().ok().and_then(|number| state.jobs.find(number));
                job.ok_or(Errno::ESRCH).and_then(|job| job.kill(signal))
            }
            None => match target.parse() {
                Ok(number) => process::kill(number, signal),
                Err(_) => return Err(alloc::format!("`{target}` is no process")),
            },
        };
        result.map_err(|error| alloc::format!("{target}: {error}"))?;
    }
    Ok(())
}

const NO_JOB: &str = "there is no such job; `jobs` lists them";

/// Returns the number of the job that `fg` or `bg` names, if it names one.
fn job_of(state: &State, arguments: &[String]) -> Result<Option<u32>, String> {
    if !state.job.is_in_foreground() {
        return Err("only a command in the foreground of a terminal can do that".into());
    }
    match arguments {
        [] => Ok(None),
        [job] => match job.strip_prefix('%').unwrap_or(job).parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(alloc::format!("`{job}` is no job")),
        },
        _ => Err("more than one job".into()),
    }
}

async fn foreground(state: &State, arguments: &[String]) -> Ran {
    let number = match job_of(state, arguments) {
        Ok(number) => number,
        Err(message) => return Ok(state.complain(alloc::format!("fg: {message}")).await),
    };
    // Its text is the command's output; a reader that has gone needs none.
    let show = async |text: &str| _ = state.print(&alloc::format!("{text}\n")).await;
    match state.jobs.to_foreground(number, show).await {
        Some(ran) => ran,
        None => Ok(state.complain(alloc::format!("fg: {NO_JOB}")).await),
    }
}

async fn wait(state: &State, arguments: &[String]) -> Ran {
    let mut status = 0;
    for argument in arguments {
        let number = argument.strip_prefix('%').and_then(|number| number.parse().ok());
        let found = match number {
            Some(number) => state.jobs.wait_for(number).await,
            None => None,
        };
        status = match found {
            Some(status) => status,
            None => {
                state.complain(alloc::format!("wait: {argument}: {NO_JOB}")).await;
                127
            }
        };
    }
    if arguments.is_empty() {
        state.jobs.wait(&state.job).await;
    }
    Ok(status)
}

async fn exit(state: &State, arguments: &[String]) -> Ran {
    match arguments {
        [] => Err(Stop::Exit(state.status)),
        [status] => match status.parse::<u32>() {
            Ok(status) => Err(Stop::Exit(status as u8)),
            Err(_) => Ok(state.complain(alloc::format!("exit: `{status}` is no status")).await),
        },
        _ => Ok(state.complain("exit: more than one status").await),
    }
}

async fn leave_function(state: &State, arguments: &[String]) -> Ran {
    let status = match arguments {
        [] => Some(state.status),
        [status] => status.parse::<u32>().ok().map(|status| status as u8),
        _ => None,
    };
    match status {
        None => Ok(state.complain("return: expected a status").await),
        Some(_) if !state.is_in_function() && state.sources == 0 => {
            Ok(state.complain("return: there is no function").await)
        }
        Some(status) => Err(Stop::Return(status)),
    }
}

async fn leave_loop(state: &State, name: &str, arguments: &[String]) -> Ran {
    let loops = match arguments {
        [] => Some(1),
        [loops] => loops.parse::<usize>().ok().filter(|loops| *loops > 0),
        _ => None,
    };
    match loops {
        None => Ok(state.complain(alloc::format!("{name}: expected a number of loops")).await),
        Some(_) if state.loops == 0 => Ok(state.complain(alloc::format!("{name}: there is no loop")).await),
        Some(loops) if name == "break" => Err(Stop::Break(loops.min(state.loops))),
        Some(loops) => Err(Stop::Continue(loops.min(state.loops))),
    }
}

/// Runs a script in this shell.
async fn source(state: &mut State, arguments: &[String]) -> Ran {
    let [path] = arguments else { return Ok(state.complain("usage: . FILE").await) };
    state.enter();
    let text = match cops::file::read_to_string(path).await {
        Ok(text) => text,
        Err(error) => return Ok(state.complain(alloc::format!(".: {path}: {error}")).await),
    };
    match command_line::parse(&text) {
        Ok(_) if state.sources == MOST_SOURCES => {
            Ok(state.complain(alloc::format!(".: {path}: more than {MOST_SOURCES} files within each other")).await)
        }
        Ok(script) => {
            state.sources += 1;
            let ran = run::script(state, &script).await;
            state.sources -= 1;
            match ran {
                Err(Stop::Return(status)) => Ok(status),
                ran => ran,
            }
        }
        Err(error) => {
            state.complain(alloc::format!("{path}: {error}")).await;
            Ok(2)
        }
    }
}

/// Reads a line, byte by byte: the rest of the input is for others.
async fn read(state: &mut State, names: &[String]) -> Ran {
    let mut line = Vec::new();
    let mut is_whole = false;
    let mut byte = alloc::vec![0; 1];
    loop {
        state.job.pass().await?;
        let input = state.files[0].raw();
        // As for a program: a job in the background does not read what is typed for others.
        if state.job.is_interactive() && !state.job.is_in_foreground() && terminal::settings(input).is_ok() {
            state.job.note_stop();
            continue;
        }
        // A byte that has come by the stop is a part of the line when the command goes on.
        let (result, returned) = cops::io::read(input, byte).until(state.job.stopped()).await;
        byte = returned;
        match result {
            Ok(1) if byte[0] == b'\n' => {
                is_whole = true;
                break;
            }
            Ok(1) => line.push(byte[0]),
            Err(Errno::ECANCELED) => {}
            _ => break,
        }
    }
    let line = String::from_utf8_lossy(&line).into_owned();
    let mut rest = line.trim();
    for (place, name) in names.iter().enumerate() {
        // The last variable gets the rest.
        let end = if place + 1 == names.len() { rest.len() } else { rest.find([' ', '\t']).unwrap_or(rest.len()) };
        let (word, behind) = rest.split_at(end);
        rest = behind.trim_start();
        state.set(name, word.into());
    }
    Ok(u8::from(!is_whole))
}

async fn test(state: &State, name: &str, arguments: &[String]) -> u8 {
    let words: Vec<&str> = arguments.iter().map(|argument| &**argument).collect();
    let words = match &words[..] {
        [inner @ .., "]"] if name == "[" => inner,
        _ if name == "[" => {
            state.complain("[: the last word is not `]`").await;
            return 2;
        }
        all => all,
    };
    state.enter();
    match condition(words) {
        Ok(is_true) => u8::from(!is_true),
        Err(word) => {
            state.complain(alloc::format!("{name}: unexpected `{word}`")).await;
            2
        }
    }
}

/// Returns whether a condition is true, or the word that makes it none.
fn condition(words: &[&str]) -> Result<bool, String> {
    let number = |text: &str| text.parse::<i64>().map_err(|_| text.to_string());
    let kind = |path: &str| cops::file::metadata(path).ok().map(|status| status.mode & mode::TYPE);
    Ok(match *words {
        [] => false,
        ["!", ref rest @ ..] if !rest.is_empty() => !condition(rest)?,
        [text] => !text.is_empty(),
        ["-n", text] => !text.is_empty(),
        ["-z", text] => text.is_empty(),
        ["-e", path] => kind(path).is_some(),
        ["-f", path] => kind(path) == Some(mode::REGULAR),
        ["-d", path] => kind(path) == Some(mode::DIRECTORY),
        ["-s", path] => cops::file::metadata(path).is_ok_and(|status| status.size > 0),
        [left, "=", right] => left == right,
        [left, "!=", right] => left != right,
        [left, "-eq", right] => number(left)? == number(right)?,
        [left, "-ne", right] => number(left)? != number(right)?,
        [left, "-lt", right] => number(left)? < number(right)?,
        [left, "-le", right] => number(left)? <= number(right)?,
        [left, "-gt", right] => number(left)? > number(right)?,
        [left, "-ge", right] => number(left)? >= number(right)?,
        [_, operator, _] | [operator, _] => return Err(operator.into()),
        [.., last] => return Err(last.into()),
    })
}
