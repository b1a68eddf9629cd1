//! Commands that read or write for long. The shell starts itself under their names, so that each is a process that
//! Ctrl-C ends.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use abi_unix::types::mode;
use cops::Errno;
use cops::file::{File, FileType, OpenOptions};
use cops::time::Duration;

pub const NAMES: &[&str] =
    &["cat", "cp", "env", "grep", "head", "ls", "mkdir", "mv", "ps", "rm", "seq", "sleep", "touch", "wc"];

/// Returns whether there is a tool of this name.
pub fn is_tool(name: &str) -> bool {
    NAMES.contains(&name)
}

/// Bytes that are moved at once.
const PIECE: usize = 16 * 1024;

/// The reason for which a tool ends early.
enum Failure {
    /// The reader of the output has gone: not worth a message.
    NoReader,
    /// A message.
    Message(String),
}

type Done = Result<(), Failure>;

/// Adds the name of its object to an error.
fn about<T>(object: &str, result: Result<T, Errno>) -> Result<T, Failure> {
    result.map_err(|error| Failure::Message(alloc::format!("{object}: {error}")))
}

fn usage(text: &str) -> Failure {
    Failure::Message(alloc::format!("usage: {text}"))
}

/// Standard output, written in pieces.
#[derive(Default)]
struct Output {
    waiting: Vec<u8>,
}

impl Output {
    async fn write(&mut self, bytes: &[u8]) -> Done {
        self.waiting.extend_from_slice(bytes);
        if self.waiting.len() >= PIECE { self.flush().await } else { Ok(()) }
    }

    async fn line(&mut self, text: &str) -> Done {
        self.write(text.as_bytes()).await?;
        self.write(b"\n").await
    }

    async fn flush(&mut self) -> Done {
        let (result, mut bytes) = cops::io::write_all(1, core::mem::take(&mut self.waiting)).await;
        bytes.clear();
        self.waiting = bytes;
        match result {
            Err(Errno::EPIPE) => Err(Failure::NoReader),
            result => about("output", result),
        }
    }
}

/// An input, read in pieces or in lines.
struct Input {
    file: File,
    name: String,
    buffer: Vec<u8>,
    /// Range of the bytes that were read and not used yet.
    start: usize,
    end: usize,
}

impl Input {
    /// Opens a file, or standard input under the name `-`.
    fn open(path: &str) -> Result<Input, Failure> {
        let file = if path == "-" { cops::file::standard_input() } else { File::open(path) };
        Ok(Input { file: about(path, file)?, name: path.into(), buffer: alloc::vec![0; PIECE], start: 0, end: 0 })
    }

    /// Returns some bytes; none at the end.
    async fn piece(&mut self) -> Result<&[u8], Failure> {
        if self.start == self.end {
            let (result, buffer) = self.file.read(core::mem::take(&mut self.buffer)).await;
            self.buffer = buffer;
            (self.start, self.end) = (0, about(&self.name, result)?);
        }
        Ok(&self.buffer[core::mem::replace(&mut self.start, self.end)..self.end])
    }

    /// Reads a line with its end, which the last may lack; returns whether there was one.
    async fn line(&mut self, line: &mut Vec<u8>) -> Result<bool, Failure> {
        line.clear();
        loop {
            let piece = self.piece().await?;
            if piece.is_empty() {
                return Ok(!line.is_empty());
            }
            let length = piece.iter().position(|byte| *byte == b'\n').map_or(piece.len(), |end| end + 1);
            line.extend_from_slice(&piece[..length]);
            let unused = piece.len() - length;
            self.start = self.end - unused;
            if line.ends_with(b"\n") {
                return Ok(true);
            }
        }
    }
}

/// Divides arguments into options, of which only some letters are known, and the rest.
fn options<'a>(arguments: &'a [String], known: &str) -> Result<(String, &'a [String]), Failure> {
    let mut found = String::new();
    let mut rest = arguments;
    while let [first, behind @ ..] = rest {
        if first == "--" {
            return Ok((found, behind));
        }
        let Some(letters) = first.strip_prefix('-').filter(|letters| !letters.is_empty()) else { break };
        if let Some(unknown) = letters.chars().find(|letter| !known.contains(*letter)) {
            return Err(Failure::Message(alloc::format!("unknown option `-{unknown}`")));
        }
        found += letters;
        rest = behind;
    }
    Ok((found, rest))
}

/// The inputs of a tool that reads files, or its standard input without any.
fn inputs(paths: &[String]) -> impl Iterator<Item = &str> {
    let default = paths.is_empty().then_some("-");
    paths.iter().map(|path| &**path).chain(default)
}

/// Runs a tool, and returns its status.
pub async fn run(name: &str, arguments: &[String]) -> i32 {
    let mut output = Output::default();
    let done = match name {
        "cat" => cat(&mut output, arguments).await,
        "cp" => copy(arguments).await,
        "env" => environment(&mut output).await,
        "grep" => match grep(&mut output, arguments).await {
            Ok(true) => Ok(()),
            Ok(false) => return i32::from(output.flush().await.is_ok()),
            Err(failure) => Err(failure),
        },
        "head" => head(&mut output, arguments).await,
        "ls" => list(&mut output, arguments).await,
        "mkdir" => each(arguments, "mkdir DIRECTORY...", cops::file::create_dir),
        "mv" => rename(arguments),
        "ps" => processes(&mut output).await,
        "rm" => remove(arguments),
        "seq" => sequence(&mut output, arguments).await,
        "sleep" => sleep(arguments).await,
        "touch" => {
            each(arguments, "touch FILE...", |path| OpenOptions::new().append(true).create(true).open(path).map(drop))
        }
        _ => count(&mut output, arguments).await,
    };
    // The output before an error is shown before its message.
    let flushed = output.flush().await;
    match done.and(flushed) {
        Ok(()) => 0,
        Err(Failure::NoReader) => 1,
        Err(Failure::Message(message)) => {
            cops::eprintln!("{name}: {message}");
            1
        }
    }
}

/// Does the same with each argument; the first failure is reported after the others were done.
fn each(arguments: &[String], text: &str, act: fn(&str) -> Result<(), Errno>) -> Done {
    let (_, paths) = options(arguments, "")?;
    if paths.is_empty() {
        return Err(usage(text));
    }
    let results: Vec<Done> = paths.iter().map(|path| about(path, act(path))).collect();
    results.into_iter().collect()
}

async fn cat(output: &mut Output, arguments: &[String]) -> Done {
    let (_, paths) = options(arguments, "")?;
    for path in inputs(paths) {
        let mut input = Input::open(path)?;
        loop {
            let piece = input.piece().await?;
            if piece.is_empty() {
                break;
            }
            output.write(piece).await?;
            // A person may be typing the input.
            output.flush().await?;
        }
    }
    Ok(())
}

async fn environment(output: &mut Output) -> Done {
    let variables: Vec<_> = cops::environment().collect();
    for variable in variables {
        output.line(&variable.to_string_lossy()).await?;
    }
    Ok(())
}

/// Prints the lines that contain a text, and returns whether there was one.
async fn grep(output: &mut Output, arguments: &[String]) -> Result<bool, Failure> {
    let (letters, rest) = options(arguments, "cv")?;
    let [text, paths @ ..] = rest else { return Err(usage("grep [-cv] TEXT [FILE]...")) };
    let mut found = 0u64;
    let mut line = Vec::new();
    for path in inputs(paths) {
        let mut input = Input::open(path)?;
        while input.line(&mut line).await? {
            let is_there = text.is_empty() || line.windows(text.len()).any(|part| part == text.as_bytes());
            if is_there == letters.contains('v') {
                continue;
            }
            found += 1;
            if letters.contains('c') {
                continue;
            }
            if paths.len() > 1 {
                output.write(alloc::format!("{path}:").as_bytes()).await?;
            }
            output.write(&line).await?;
            output.flush().await?;
        }
    }
    if letters.contains('c') {
        output.line(&found.to_string()).await?;
        output.flush().await?;
    }
    Ok(found > 0)
}

async fn head(output: &mut Output, arguments: &[String]) -> Done {
    let wrong = || usage("head [-n LINES] [FILE]...");
    let (lines, paths) = match arguments {
        [option, lines, paths @ ..] if option == "-n" => (lines.parse().map_err(|_| wrong())?, paths),
        [option, ..] if option.starts_with('-') && option.len() > 1 => return Err(wrong()),
        paths => (10u64, paths),
    };
    let mut line = Vec::new();
    for path in inputs(paths) {
        let mut input = Input::open(path)?;
        for _ in 0..lines {
            if !input.line(&mut line).await? {
                break;
            }
            output.write(&line).await?;
        }
    }
    Ok(())
}

/// Counts lines, words and bytes.
async fn count(output: &mut Output, arguments: &[String]) -> Done {
    let (letters, paths) = options(arguments, "lwc")?;
    for path in inputs(paths) {
        let mut input = Input::open(path)?;
        let (mut lines, mut words, mut bytes, mut is_in_word) = (0u64, 0u64, 0u64, false);
        loop {
            let piece = input.piece().await?;
            if piece.is_empty() {
                break;
            }
            for byte in piece {
                bytes += 1;
                lines += u64::from(*byte == b'\n');
                words += u64::from(!is_in_word && !byte.is_ascii_whitespace());
                is_in_word = !byte.is_ascii_whitespace();
            }
        }
        let counts = [('l', lines), ('w', words), ('c', bytes)];
        let wanted = counts.iter().filter(|(letter, _)| letters.is_empty() || letters.contains(*letter));
        let mut text: Vec<String> = wanted.map(|(_, count)| count.to_string()).collect();
        if path != "-" {
            text.push(path.into());
        }
        output.line(&text.join(" ")).await?;
    }
    Ok(())
}

async fn list(output: &mut Output, arguments: &[String]) -> Done {
    let (letters, paths) = options(arguments, "al1")?;
    let default = [".".to_string()];
    let paths = if paths.is_empty() { &default[..] } else { paths };
    let mut result = Ok(());
    let mut is_first = true;
    for path in paths {
        let status = match about(path, cops::file::metadata(path)) {
            Ok(status) => status,
            Err(Failure::Message(message)) => {
                output.flush().await?;
                cops::eprintln!("ls: {message}");
                result = Err(Failure::NoReader);
                continue;
            }
            Err(failure) => return Err(failure),
        };
        if status.mode & mode::TYPE != mode::DIRECTORY {
            output.line(&entry(&letters, path, path, "")).await?;
            continue;
        }
        if paths.len() > 1 {
            output.line(&alloc::format!("{}{path}:", if is_first { "" } else { "\n" })).await?;
        }
        is_first = false;
        let entries: Result<Vec<_>, Errno> = about(path, cops::file::read_dir(path))?.collect();
        let mut entries = about(path, entries)?;
        entries.retain(|entry| letters.contains('a') || !entry.name().starts_with('.'));
        entries.sort_by(|one, other| one.name().cmp(other.name()));
        for found in entries {
            let mark = if found.file_type() == FileType::Directory { "/" } else { "" };
            output.line(&entry(&letters, &alloc::format!("{path}/{}", found.name()), found.name(), mark)).await?;
        }
    }
    result
}

/// Returns the line of one file.
fn entry(letters: &str, path: &str, name: &str, mark: &str) -> String {
    if !letters.contains('l') {
        return alloc::format!("{name}{mark}");
    }
    match cops::file::symlink_metadata(path) {
        Err(error) => alloc::format!("?                     {name}{mark}: {error}"),
        Ok(status) => {
            let kind = match status.mode & mode::TYPE {
                mode::DIRECTORY => 'd',
                mode::LINK => 'l',
                mode::CHARACTER => 'c',
                mode::BLOCK => 'b',
                mode::PIPE => 'p',
                mode::SOCKET => 's',
                _ => '-',
            };
            let rights =
                (0..9).map(|place| if status.mode & (0o400 >> place) == 0 { '-' } else { ['r', 'w', 'x'][place % 3] });
            let rights: String = rights.collect();
            alloc::format!("{kind}{rights} {:>10} {name}{mark}", status.size)
        }
    }
}

fn is_directory(path: &str) -> bool {
    cops::file::symlink_metadata(path).is_ok_and(|status| status.mode & mode::TYPE == mode::DIRECTORY)
}

fn remove(arguments: &[String]) -> Done {
    let (letters, paths) = options(arguments, "rf")?;
    if paths.is_empty() {
        return Err(usage("rm [-rf] FILE..."));
    }
    for path in paths {
        match remove_one(path, letters.contains('r')) {
            Err(_) if letters.contains('f') && cops::file::symlink_metadata(path) == Err(Errno::ENOENT) => {}
            done => done?,
        }
    }
    Ok(())
}

/// Removes a file, or a directory with all that is in it. Directories wait in a list, so depth costs no stack.
fn remove_one(path: &str, is_recursive: bool) -> Done {
    if !is_recursive || !is_directory(path) {
        return about(path, cops::file::remove(path));
    }
    let mut directories = alloc::vec![(path.to_string(), false)];
    while let Some((directory, is_empty)) = directories.pop() {
        if is_empty {
            about(&directory, cops::file::remove_dir(&directory))?;
            continue;
        }
        directories.push((directory.clone(), true));
        let entries: Result<Vec<_>, Errno> = about(&directory, cops::file::read_dir(&directory))?.collect();
        for entry in about(&directory, entries)? {
            let path = alloc::format!("{directory}/{}", entry.name());
            if is_directory(&path) {
                directories.push((path, false));
            } else {
                about(&path, cops::file::remove(&path))?;
            }
        }
    }
    Ok(())
}

/// Returns the path of a copy: in the last argument, if that is a directory.
fn target(from: &str, to: &str) -> String {
    if !cops::file::metadata(to).is_ok_and(|status| status.mode & mode::TYPE == mode::DIRECTORY) {
        return to.into();
    }
    let name = from.trim_end_matches('/').rsplit('/').next().unwrap_or(from);
    alloc::format!("{}/{name}", to.trim_end_matches('/'))
}

/// Divides arguments into sources and their target.
fn sources<'a>(arguments: &'a [String], text: &str) -> Result<(&'a [String], &'a str), Failure> {
    let (_, paths) = options(arguments, "")?;
    match paths {
        [sources @ .., to] if sources.len() == 1 || !sources.is_empty() && is_directory(to) => Ok((sources, to)),
        _ => Err(usage(text)),
    }
}

fn rename(arguments: &[String]) -> Done {
    let (sources, to) = sources(arguments, "mv SOURCE TARGET, or mv SOURCE... DIRECTORY")?;
    sources.iter().try_for_each(|from| about(from, cops::file::rename(from, &target(from, to))))
}

async fn copy(arguments: &[String]) -> Done {
    let (sources, to) = sources(arguments, "cp SOURCE TARGET, or cp SOURCE... DIRECTORY")?;
    for from in sources {
        let to = target(from, to);
        let mut input = Input::open(from)?;
        let status = about(from, input.file.status())?;
        if cops::file::metadata(&to).is_ok_and(|other| (other.device, other.inode) == (status.device, status.inode)) {
            return Err(Failure::Message(alloc::format!("{from} and {to} are one file")));
        }
        let output = about(&to, File::create(&to))?;
        loop {
            let piece = input.piece().await?.to_vec();
            if piece.is_empty() {
                break;
            }
            about(&to, output.write_all(piece).await.0)?;
        }
    }
    Ok(())
}

async fn processes(output: &mut Output) -> Done {
    let mut numbers: Vec<u32> = Vec::new();
    for entry in about("/proc", cops::file::read_dir("/proc"))? {
        numbers.extend(about("/proc", entry)?.name().parse::<u32>());
    }
    numbers.sort_unstable();
    output.line("  PID  PPID STATE    MEMORY WORKERS NAME").await?;
    for number in numbers {
        // Of a process that has ended meanwhile there is none.
        let Ok(status) = cops::file::read_to_string(&alloc::format!("/proc/{number}/status")).await else { continue };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_default().trim()
        };
        let state = field("State").split(' ').next().unwrap_or_default();
        let (parent, memory, workers) = (field("PPid"), field("VmRSS"), field("Threads"));
        let arguments = cops::file::read(&alloc::format!("/proc/{number}/cmdline")).await.unwrap_or_default();
        let words = String::from_utf8_lossy(&arguments).trim_end_matches('\0').replace('\0', " ");
        let name = if words.is_empty() { alloc::format!("({})", field("Name")) } else { words };
        output.line(&alloc::format!("{number:>5} {parent:>5} {state:<5} {memory:>9} {workers:>7} {name}")).await?;
    }
    Ok(())
}

async fn sequence(output: &mut Output, arguments: &[String]) -> Done {
    let number = |text: &String| text.parse::<i64>().ok();
    let range = match arguments {
        [last] => number(last).map(|last| (1, last)),
        [first, last] => number(first).zip(number(last)),
        _ => None,
    };
    let (first, last) = range.ok_or_else(|| usage("seq [FIRST] LAST"))?;
    for number in first..=last {
        output.line(&number.to_string()).await?;
    }
    Ok(())
}

async fn sleep(arguments: &[String]) -> Done {
    let [seconds] = arguments else { return Err(usage("sleep SECONDS")) };
    let duration = seconds.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    cops::sleep(duration.ok_or_else(|| usage("sleep SECONDS"))?).await;
    Ok(())
}
