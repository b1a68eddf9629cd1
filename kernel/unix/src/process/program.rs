//! Programs: from a path and two lists of strings to a process that is ready to run.
//!
//! A [`Plan`] covers everything that can fail for reasons of the caller: the file was found and is an executable of
//! this machine, the strings were read and fit. Only then is memory changed, which for `execve` means that the old
//! program is given up.

use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use ::program::core_file::MappedFile;
use ::program::layout::{Layout, STACK_GUARD};
use ::program::script::{self, LONGEST_CHAIN, Script};
use ::program::stack::{AuxiliaryValue, Contents, StackError, Texts};
use ::program::{HEAD_LENGTH, Image, ImageError, Protection as SegmentProtection, Segment};
use abi_queue::Priority;
use abi_queue::pages::{COMPLETION_RING_OFFSET, PAGE_SIZE, PROCESS_PAGE_OFFSET};
use abi_unix::Errno;
use abi_unix::types::{auxiliary, limit};
use filesystem::rights::{self, EXECUTE, Ownership, READ, Subject};
use filesystem::{Access, LastLink};
use hal_api::UserContext;
use memory::space::{Placement, Sharing};
use memory::sv39::Protection;
use platform::println;
use usermode::Space;

use crate::asynchronous::user_interrupts::back_end;
use crate::files::console;
use crate::files::descriptor::Descriptors;
use crate::files::file::{self, OpenFile};
use crate::files::mounts::{self, Halt, Path, Place};
use crate::files::tree::Content;
use crate::observing::call_log;
use crate::process::accounts::{Account, Charge, Resource, has_machine_memory};
use crate::process::archived_text::ArchivedText;
use crate::process::beginnings::Beginning;
use crate::process::capabilities::Authority;
use crate::process::class::ClassAndNice;
use crate::process::core_file::Dump;
use crate::process::family::ProcessPlace;
use crate::process::identity::{self, CapabilitiesAfter, Identity, Whom};
use crate::process::lending::ProcessMemory;
use crate::process::shared::{SIZES, Shared};
use crate::process::user::{USER_END, map_error};
use crate::process::worker::Worker;
use crate::process::{self, Origin, Process, authority, switching, table};
use crate::scheduling::standing::Standing;
use crate::scheduling::steps;

/// Name of the guard region below the first stack.
const GUARD_NAME: &str = "[guard]";
/// Greatest number of bytes of arguments and environment, with a word for the address of each: a quarter of the stack,
/// as on Linux.
const LARGEST_STRINGS: usize = program::layout::STACK_SIZE as usize / 4;
/// Greatest number of bytes of one of them, with its NUL.
const LONGEST_STRING: usize = 128 * 1024;
/// Bytes for which there is room whatever the limit of the stack is.
const LEAST_STRINGS: usize = 128 * 1024;
/// Bytes of strings that are charged at a time.
const CHARGED_AT_A_TIME: usize = 4096;
/// Bytes of the address of a string.
const WORD: usize = size_of::<u64>();
/// Bytes of text whose pages are entered in a step.
const ENTERED_AT_A_TIME: usize = 64 * PAGE_SIZE;
/// Number of strings that are read in a step.
const STRINGS_AT_A_TIME: usize = 16;

/// An executable file with its parts, in their places.
struct Executable {
    content: Content,
    image: Image,
}

/// A program that is ready to be loaded.
pub(crate) struct Plan {
    path: Vec<u8>,
    program: Executable,
    /// The dynamic linker that the program names, which gets control first.
    linker: Option<Executable>,
    layout: Layout,
    arguments: Texts,
    environment: Texts,
    /// The charge for the two; none for the first program, whose are few.
    _room: Option<Box<StringRoom>>,
}

/// Room for the strings of a call.
// Boxed: its future has no room for it.
struct StringRoom {
    /// Bytes for which there is room yet.
    left: usize,
    /// Bytes that were taken.
    taken: usize,
    charge: Charge,
}

impl StringRoom {
    /// Takes bytes of a string, or for its address. `E2BIG`, `ENOMEM`.
    fn take(&mut self, bytes: usize) -> Result<(), Errno> {
        self.left = self.left.checked_sub(bytes).ok_or(Errno::E2BIG)?;
        self.taken += bytes;
        if self.taken > self.charge.amount() {
            self.charge.resize(self.taken.next_multiple_of(CHARGED_AT_A_TIME))?;
        }
        Ok(())
    }
}

fn map_anonymous(space: &Space, range: Range<u64>, protection: Protection, name: &'static str) -> Result<(), Errno> {
    let place = Placement::FixedIfFree(range.start);
    let mapped = space.lock().map_anonymous(place, range.end - range.start, protection, name);
    usermode::flush(mapped.map_err(map_error)?.1);
    Ok(())
}

fn map_shared(
    space: &Space,
    start: usize,
    frames: Vec<memory::SharedFrame>,
    sharing: Sharing,
    protection: Protection,
) -> Result<(), Errno> {
    let place = Placement::FixedIfFree(start as u64);
    let mapped = space.lock().map_shared(place, frames, sharing, protection, "[kernel]");
    usermode::flush(mapped.map_err(map_error)?.1);
    Ok(())
}

fn image_error(error: ImageError) -> Errno {
    match error {
        ImageError::OutOfMemory => Errno::ENOMEM,
        _ => Errno::ENOEXEC,
    }
}

fn linker_error(error: ImageError) -> Errno {
    match error {
        ImageError::OutOfMemory => Errno::ENOMEM,
        _ => Errno::ELIBBAD,
    }
}

fn stack_error(error: StackError) -> Errno {
    match error {
        StackError::TooBig => Errno::E2BIG,
        StackError::NulInString => Errno::EINVAL,
        StackError::OutOfMemory => Errno::ENOMEM,
    }
}

/// Reads a NULL-terminated list of string addresses, and adds the strings without the first `skipped` to a list, in
/// steps.
async fn read_strings(
    process: &Process,
    mut address: usize,
    mut skipped: usize,
    mut strings: Texts,
    room: &mut StringRoom,
) -> Result<Texts, Errno> {
    if address == 0 {
        return Ok(strings);
    }
    loop {
        let mut word = [0; 8];
        process.copy_in(address, &mut word)?;
        let pointer = usize::from_le_bytes(word);
        if pointer == 0 {
            steps::pause(process).await;
            return Ok(strings);
        }
        address = address.checked_add(8).filter(|&next| next < USER_END).ok_or(Errno::EFAULT)?;
        if skipped > 0 {
            skipped -= 1;
            continue;
        }
        // The NUL, and the address.
        room.take(1 + WORD)?;
        read_string(process, pointer, &mut strings, room).await?;
        if strings.len().is_multiple_of(STRINGS_AT_A_TIME) {
            steps::pause(process).await;
        }
    }
}

/// Set if programs lie elsewhere each time. Not with `aslr=off` on the boot command line: for debuggers, and so that
/// counts of instructions can be compared to the last ones.
static IS_RANDOM: AtomicBool = AtomicBool::new(true);

/// Reads the boot command line.
pub(crate) fn start(aslr: Option<&str>) {
    match aslr {
        None | Some("on") => {}
        Some("off") => IS_RANDOM.store(false, Ordering::Relaxed),
        Some(other) => println!("aslr: `{other}` is neither on nor off; it is on"),
    }
}

/// Copies bytes into memory of their own.
fn copied(bytes: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len()).map_err(|_| Errno::ENOMEM)?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Reads the first bytes of a range of a file, as many as there are; `None` if they are to be fetched.
fn read_in_place(content: &Content, range: &Range<u64>) -> Result<Option<Vec<u8>>, Errno> {
    let length = (range.end - range.start) as usize;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).map_err(|_| Errno::ENOMEM)?;
    bytes.resize(length, 0);
    let Some(count) = content.read_at(range.start, &mut bytes) else { return Ok(None) };
    bytes.truncate(count);
    Ok(Some(bytes))
}

/// Reads the first bytes of a range of a file, as many as there are.
async fn read_range(content: &Content, range: Range<u64>, whom: For<'_>) -> Result<Vec<u8>, Errno> {
    match read_in_place(content, &range)? {
        Some(bytes) => Ok(bytes),
        None => content.fetch(whom.payer(), range.start, (range.end - range.start) as usize).await,
    }
}

/// The program that a path leads to, behind any scripts.
struct Found {
    content: Content,
    /// The start of the file.
    head: Vec<u8>,
    /// Arguments that take the place of the first one, the last first: the path of the script, and the path of each
    /// interpreter behind its argument. Empty if the path leads to no script.
    before: Vec<Vec<u8>>,
}

impl Found {
    /// Looks a program up, and the interpreters that scripts name in its place.
    async fn look_up(
        directory: &Place,
        from: Option<&OpenedFile>,
        path: &[u8],
        caller: u32,
        whom: For<'_>,
    ) -> Result<Found, Errno> {
        let mut opened = match from {
            Some(from) => Some(from.executable(path, caller, whom).await?),
            None => None,
        };
        let mut path = from.map_or_else(|| copied(path), |from| from.name(path))?;
        let mut before = Vec::new();
        // A path and an argument for each, and the first script's path.
        before.try_reserve_exact(2 * LONGEST_CHAIN + 1).map_err(|_| Errno::ENOMEM)?;
        for _ in 0..=LONGEST_CHAIN {
            let content = match opened.take() {
                Some(content) => content,
                None => executable(directory, &path, caller, whom).await?,
            };
            let head = read_range(&content, 0..HEAD_LENGTH as u64, whom).await?;
            if !script::is_script(&head) {
                if !before.is_empty() {
                    before.push(path);
                }
                return Ok(Found { content, head, before });
            }
            // The interpreter would not find it.
            if before.is_empty() && from.is_some_and(|from| from.is_closed) {
                return Err(Errno::ENOENT);
            }
            let script = Script::parse(&head).ok_or(Errno::ENOEXEC)?;
            before.push(core::mem::replace(&mut path, copied(script.interpreter)?));
            if let Some(argument) = script.argument {
                before.push(copied(argument)?);
            }
        }
        Err(Errno::ELOOP)
    }

    /// Checks the program, and decides its place.
    fn check(self) -> Result<(Executable, Layout), Errno> {
        let Found { content, head, .. } = self;
        let (image, layout) = place(|base| Image::parse_head(&head, content.size(), base))?;
        Ok((Executable { content, image }, layout))
    }

    /// Returns the list that the program's other arguments are added to.
    fn first_arguments(&self) -> Result<Texts, Errno> {
        let mut texts = Texts::new();
        for text in self.before.iter().rev() {
            texts.push(text).map_err(stack_error)?;
        }
        Ok(texts)
    }

    /// Returns the number of the caller's arguments that these take the place of.
    fn replaced(&self) -> usize {
        usize::from(!self.before.is_empty())
    }
}

/// Finds the dynamic linker that a program names.
async fn linker_of(
    program: &Executable,
    directory: &Place,
    layout: &Layout,
    whom: For<'_>,
) -> Result<Option<Executable>, Errno> {
    let Some(range) = program.image.interpreter() else { return Ok(None) };
    let path = read_range(&program.content, range, whom).await?;
    // One NUL, at the end.
    let path = path.strip_suffix(b"\0").filter(|path| !path.contains(&0)).ok_or(Errno::ENOEXEC)?;
    let content = executable(directory, path, 0, whom).await?;
    let head = read_range(&content, 0..HEAD_LENGTH as u64, whom).await?;
    // A linker's own request for a linker is ignored, as on Linux: there is no chain of them.
    let image = Image::parse_head_below(&head, content.size(), layout.mapping_top).map_err(linker_error)?;
    let (own, others) = (image.pages(), program.image.pages());
    let overlaps = own.start < others.end && others.start < own.end;
    if overlaps || !layout.leaves_room_for(&own, SIZES) {
        return Err(Errno::ENOEXEC);
    }
    Ok(Some(Executable { content, image }))
}

/// Decides the place of a program, and of everything around it.
#[doc(alias = "load_elf_binary")]
#[doc(alias = "binfmt_elf")]
fn place(parse: impl Fn(u64) -> Result<Image, ImageError>) -> Result<(Image, Layout), Errno> {
    let is_random = IS_RANDOM.load(Ordering::Relaxed);
    // Only a program with a fixed place in its file can be in the way.
    for _ in 0..if is_random { 8 } else { 0 } {
        let layout = Layout::random(SIZES, crate::random::word);
        let image = parse(layout.program).map_err(image_error)?;
        if layout.leaves_room_for(&image.pages(), SIZES) {
            return Ok((image, layout));
        }
    }
    let image = parse(Layout::FIXED.program).map_err(image_error)?;
    Ok((image, Layout::FIXED))
}

/// Returns whether an address lies in the guard below a stack: the first stack's, or a program's own of this kind.
pub(crate) fn is_in_guard(space: &Space, address: u64, stack: u64) -> bool {
    let region = space.lock().region_at(address);
    let is_near = address < stack + PAGE_SIZE as u64 && stack.saturating_sub(address) <= STACK_GUARD;
    region.is_some_and(|region| region.name == GUARD_NAME || region.protection == Protection::None && is_near)
}

/// Reads a string, in steps. `E2BIG` if it is too long.
async fn read_string(
    process: &Process,
    address: usize,
    strings: &mut Texts,
    room: &mut StringRoom,
) -> Result<(), Errno> {
    let mut length = 0;
    loop {
        let at = address.checked_add(length).ok_or(Errno::EFAULT)?;
        // Up to the end of a piece, so that it does not cross a page behind the end of the string.
        let mut piece = [0; 256];
        let piece = &mut piece[..256 - at % 256];
        process.copy_in(at, piece)?;
        let end = piece.iter().position(|&byte| byte == 0);
        let found = &piece[..end.unwrap_or(piece.len())];
        if length + found.len() >= LONGEST_STRING {
            return Err(Errno::E2BIG);
        }
        room.take(found.len())?;
        strings.push_part(found).map_err(stack_error)?;
        length += found.len();
        if end.is_some() {
            return strings.end().map_err(stack_error);
        }
        if (at / 256).is_multiple_of(16) {
            steps::pause(process).await;
        }
    }
}

/// The process on whose behalf a program is loaded.
#[derive(Clone, Copy)]
enum For<'a> {
    /// None, for the first program.
    Nobody,
    /// A process that starts another one, and gets an error if there is no memory.
    Parent(&'a Process),
    /// A process that has given its old program up. It ends only if the machine has no memory left. Its account is not
    /// checked again: a full one has refused the call before, or has been filled by its children since.
    Itself(&'a Process),
}

impl For<'_> {
    /// Returns the account and the number of the process that pays for what is read for it.
    fn payer(&self) -> (&Arc<Account>, u32) {
        match self {
            For::Nobody => (Account::first(), 0),
            For::Parent(process) | For::Itself(process) => (&process.account, process.id),
        }
    }

    /// Returns the user for whom files are looked at.
    fn whom(&self) -> Whom {
        match self {
            For::Nobody => None,
            For::Parent(process) | For::Itself(process) => process.whom(),
        }
    }
}

/// Returns the file of a program, and follows its path in steps.
async fn executable(directory: &Place, path: &[u8], caller: u32, whom: For<'_>) -> Result<Content, Errno> {
    let path = Path::from_directory(|| Ok(directory.clone()), copied(path)?, caller)?;
    let mut path = path.paid_by(whom.payer().0).seen_by(whom.whom());
    loop {
        match path.look_up(LastLink::Follow) {
            Ok(place) => return Content::of(place, path.subject()),
            Err(Halt::Failed(error)) => return Err(error),
            Err(Halt::Later) => {
                pause_for(whom).await?;
                path.run_errand().await;
            }
        }
    }
}

/// Lets the work pause between two parts. Others may have used memory up meanwhile, so the process is admitted again.
async fn pause_for(whom: For<'_>) -> Result<(), Errno> {
    match whom {
        For::Nobody => {
            steps::pause(&steps::Endless).await;
            Ok(())
        }
        For::Parent(process) => {
            steps::pause(process).await;
            process.account.admit()
        }
        For::Itself(process) => {
            steps::pause(process).await;
            if has_machine_memory() { Ok(()) } else { Err(Errno::ENOMEM) }
        }
    }
}

/// Copies some words to an address; returns the address behind them. (A function, because variables that live while a
/// future waits make the future large.)
fn copy_words(space: &Space, address: u64, words: &mut impl Iterator<Item = u64>) -> Result<u64, Errno> {
    let mut bytes = [0; 1024];
    let mut length = 0;
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
        length += 8;
    }
    space.lock().copy_out(address, &bytes[..length]).map_err(|_| Errno::ENOMEM)?;
    Ok(address + length as u64)
}

fn protection_of(segment: &Segment) -> Protection {
    match segment.protection {
        SegmentProtection::Read => Protection::Read,
        SegmentProtection::ReadWrite => Protection::ReadWrite,
        SegmentProtection::ReadExecute => Protection::ReadExecute,
    }
}

impl Executable {
    /// Returns the address at which the file begins, as far as it was moved (`AT_BASE`).
    fn base(&self) -> u64 {
        match self.image.placement() {
            ::program::Placement::Fixed => 0,
            ::program::Placement::Moved { bias } => bias,
        }
    }

    /// Copies the first bytes of a range of the file to an address, and returns their number; `None` if they are to be
    /// fetched. (A function, because variables that live while a future waits make the future large.)
    fn copy_piece(&self, space: &Space, address: usize, range: Range<u64>) -> Result<Option<usize>, Errno> {
        let length = (range.end - range.start) as usize;
        if let Some(bytes) = self.archived().and_then(|file| file.get(range.start as usize..)) {
            let bytes = &bytes[..length.min(PAGE_SIZE - address % PAGE_SIZE).min(bytes.len())];
            space.lock().copy_out(address as u64, bytes).map_err(|_| Errno::ENOMEM)?;
            return if bytes.is_empty() { Err(Errno::EIO) } else { Ok(Some(bytes.len())) };
        }
        let mut piece = [0; 1024];
        let wanted = piece.len().min(length);
        let Some(count) = self.content.read_at(range.start, &mut piece[..wanted]) else { return Ok(None) };
        if count == 0 {
            return Err(Errno::EIO);
        }
        space.lock().copy_out(address as u64, &piece[..count]).map_err(|_| Errno::ENOMEM)?;
        Ok(Some(count))
    }

    /// Returns the bytes of the file, if it is one of the archive.
    fn archived(&self) -> Option<&'static [u8]> {
        self.content.place().node.stored()?.archived_bytes()
    }

    /// Maps the text of a segment that all processes have in common, in steps. Returns `false` if there is none.
    ///
    /// # Cancellation
    /// A part of the text is there.
    async fn share(&self, segment: &Segment, space: &Space, whom: For<'_>) -> Result<bool, Errno> {
        // A new text takes small allocations.
        if let For::Parent(process) | For::Itself(process) = whom
            && process.account.admit().is_err()
        {
            return Ok(false);
        }
        let Some(text) = self.archived().and_then(|file| ArchivedText::of(file, segment)) else { return Ok(false) };
        loop {
            match text.copy_some() {
                Ok(true) => break,
                Ok(false) => pause_for(whom).await?,
                Err(_) => return Ok(false),
            }
        }
        let Range { start, end } = segment.pages();
        let (place, protection) = (Placement::FixedIfFree(start), protection_of(segment));
        let mapped = space.lock().map_object(place, end - start, &text.usage(), protection, "");
        usermode::flush(mapped.map_err(map_error)?.1);
        for at in (start..end).step_by(ENTERED_AT_A_TIME) {
            pause_for(whom).await?;
            space.lock().enter_present(at..end.min(at + ENTERED_AT_A_TIME as u64));
        }
        Ok(true)
    }

    /// Maps the segments and fills them from the file, in steps.
    ///
    /// # Cancellation
    /// A part of the segments is there.
    async fn load(&self, space: &Space, whom: For<'_>) -> Result<(), Errno> {
        for segment in self.image.segments() {
            if self.share(segment, space, whom).await? {
                continue;
            }
            let pages = segment.pages();
            map_anonymous(space, pages.clone(), Protection::ReadWrite, "")?;
            let mut offset = segment.file.start;
            let mut address = segment.memory.start as usize;
            while offset < segment.file.end {
                let count = match self.copy_piece(space, address, offset..segment.file.end)? {
                    Some(count) => count,
                    None => {
                        let left = (segment.file.end - offset) as usize;
                        let bytes = self.content.fetch(whom.payer(), offset, left).await?;
                        space.lock().copy_out(address as u64, &bytes).map_err(|_| Errno::ENOMEM)?;
                        if bytes.is_empty() {
                            return Err(Errno::EIO);
                        }
                        bytes.len()
                    }
                };
                offset += count as u64;
                address += count;
                // Each piece is copied twice, and each page is new.
                if address / PAGE_SIZE != (address - count) / PAGE_SIZE {
                    pause_for(whom).await?;
                }
            }
            pause_for(whom).await?;
            let protection = protection_of(segment);
            if protection == Protection::ReadWrite {
                continue;
            }
            let changed = space.lock().protect(pages, protection);
            usermode::flush(changed.map_err(map_error)?);
            pause_for(whom).await?;
        }
        Ok(())
    }
}

/// The wish for another program: the addresses of its path, of the list of arguments and of the list of variables.
pub(crate) struct Execution {
    /// The file that the path leads from.
    pub(crate) from: Option<Box<OpenedFile>>,
    pub(crate) path: usize,
    pub(crate) arguments: usize,
    pub(crate) environment: usize,
}

/// An open file from which a path leads to a program, or the program if the path is empty.
pub(crate) struct OpenedFile {
    /// Its descriptor.
    pub(crate) number: usize,
    /// Whether `execve` closes the descriptor.
    pub(crate) is_closed: bool,
    /// Its place; `None` for a pipe and its like.
    pub(crate) place: Option<Place>,
}

impl OpenedFile {
    /// Returns the path by which the program finds it. As on Linux, the interpreter of a script gets it, too.
    fn name(&self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut name = format!("/dev/fd/{}", self.number).into_bytes();
        name.try_reserve_exact(1 + path.len()).map_err(|_| Errno::ENOMEM)?;
        if !path.is_empty() {
            name.push(b'/');
            name.extend_from_slice(path);
        }
        Ok(name)
    }

    /// Returns the program that a path leads to from here.
    async fn executable(&self, path: &[u8], caller: u32, whom: For<'_>) -> Result<Content, Errno> {
        match (&self.place, path) {
            (None, b"") => Err(Errno::EACCES),
            (None, _) => Err(Errno::ENOTDIR),
            (Some(place), b"") => Content::of(place.clone(), identity::subject(&whom.whom())),
            (Some(place), path) => executable(place, path, caller, whom).await,
        }
    }
}

impl Plan {
    /// Reads a process's arguments of the call: path, arguments and environment from its memory.
    ///
    /// # Cancellation
    /// Dropping it has no effect.
    pub(crate) async fn read(process: &Process, execution: Execution) -> Result<Plan, Errno> {
        let Execution { from, path, arguments, environment } = execution;
        let path = process.copy_in_path(path)?;
        let directory = process.directory.lock().clone();
        let found = Found::look_up(&directory, from.as_deref(), &path, process.id, For::Parent(process)).await?;
        let path = match from {
            None => path,
            Some(from) => from.name(&path)?,
        };
        let first = found.first_arguments()?;
        let of_stack = process.account.setting(limit::STACK as usize).soft / 4;
        let left = of_stack.clamp(LEAST_STRINGS, LARGEST_STRINGS).saturating_sub(first.bytes());
        let charge = process.account.charge(Resource::Memory, 0)?;
        let mut room = Box::new(StringRoom { left, taken: 0, charge });
        let arguments = read_strings(process, arguments, found.replaced(), first, &mut room).await?;
        let environment = read_strings(process, environment, 0, Texts::new(), &mut room).await?;
        let (program, layout) = found.check()?;
        let linker = linker_of(&program, &directory, &layout, For::Parent(process)).await?;
        Ok(Plan { path, program, linker, layout, arguments, environment, _room: Some(room) })
    }

    /// Writes the contents of the first stack: arguments, environment, and the auxiliary vector. Returns its lowest
    /// address.
    ///
    /// # Cancellation
    /// A part of it is written.
    async fn write_stack(&self, space: &Space, shared: &Shared, whom: For<'_>, identity: &Whom) -> Result<u64, Errno> {
        let mut random = [0; 16];
        crate::random::bytes(&mut random);
        let number = |value: usize| AuxiliaryValue::Number(value as u64);
        let headers = self.program.image.program_headers();
        let identity = identity::value(identity);
        let header = |value: fn(::program::ProgramHeaders) -> u64| AuxiliaryValue::Number(headers.map_or(0, value));
        let vector = [
            (auxiliary::SYSINFO_EHDR, number(shared.image_address())),
            (auxiliary::PHDR, header(|headers| headers.address)),
            (auxiliary::PHENT, header(|headers| headers.entry_size)),
            (auxiliary::PHNUM, header(|headers| headers.count)),
            (auxiliary::PAGESZ, number(PAGE_SIZE)),
            (auxiliary::BASE, AuxiliaryValue::Number(self.linker.as_ref().map_or(0, Executable::base))),
            (auxiliary::FLAGS, number(0)),
            (auxiliary::ENTRY, AuxiliaryValue::Number(self.program.image.entry())),
            (auxiliary::UID, number(identity.users.real as usize)),
            (auxiliary::EUID, number(identity.users.effective as usize)),
            (auxiliary::GID, number(identity.groups.real as usize)),
            (auxiliary::EGID, number(identity.groups.effective as usize)),
            (auxiliary::HWCAP, AuxiliaryValue::Number(auxiliary::HARDWARE)),
            (auxiliary::SECURE, number(identity.is_secure().into())),
            (auxiliary::CLKTCK, number(100)),
            (auxiliary::RANDOM, AuxiliaryValue::Bytes(&random)),
            (auxiliary::EXECFN, AuxiliaryValue::Text(&self.path)),
            (auxiliary::COPS_PROCESS_PAGE, number(shared.address(PROCESS_PAGE_OFFSET))),
            (auxiliary::COPS_GLOBAL_PAGE, number(shared.global_page_address())),
            (auxiliary::COPS_COMPLETION_RING, number(shared.address(COMPLETION_RING_OFFSET))),
            (auxiliary::COPS_HARTS, number(crate::machine::harts())),
            (auxiliary::COPS_USER_INTERRUPTS, number(back_end::number())),
        ];
        let contents = Contents { arguments: &self.arguments, environment: &self.environment, auxiliary: &vector };
        let image = contents.lay_out(self.layout.stack_start, 2 * LARGEST_STRINGS).map_err(stack_error)?;
        let (mut words, mut address) = (image.words(), image.pointer());
        loop {
            let end = copy_words(space, address, &mut words)?;
            if end == address {
                break;
            }
            address = end;
            pause_for(whom).await?;
        }
        for (address, piece) in image.data() {
            space.lock().copy_out(address, piece).map_err(|_| Errno::ENOMEM)?;
            pause_for(whom).await?;
        }
        shared.set_texts(image.starts());
        // Behind the number of arguments, and two lists with their ends.
        let words = 1 + self.arguments.len() + 1 + self.environment.len() + 1;
        shared.set_auxiliary(image.pointer() + 8 * words as u64);
        Ok(image.pointer())
    }

    /// Fills an empty address space and returns the first registers, in steps on behalf of a process. The program will
    /// have this identity.
    ///
    /// # Cancellation
    /// The address space is left with a part of the program.
    async fn load(&self, space: &Space, shared: &Shared, whom: For<'_>, identity: &Whom) -> Result<UserContext, Errno> {
        let layout = &self.layout;
        shared.place(layout, self.program.image.placement());
        space.lock().set_mapping_top(layout.mapping_top);
        self.program.load(space, whom).await?;
        space.lock().set_break_start(self.program.image.pages().end + layout.break_gap);
        if let Some(linker) = &self.linker {
            linker.load(space, whom).await?;
        }
        map_anonymous(space, layout.stack_guard(), Protection::None, GUARD_NAME)?;
        map_anonymous(space, layout.stack(), Protection::ReadWrite, "")?;
        for (address, frames) in shared.mappings() {
            map_shared(space, address, frames, Sharing::ReadWrite, Protection::ReadWrite)?;
        }
        if let Some((address, frames)) = shared.global_mapping() {
            map_shared(space, address, frames, Sharing::ReadOnly, Protection::Read)?;
        }
        if let Some((address, frames)) = shared.image_mapping() {
            map_shared(space, address, frames, Sharing::ReadOnly, Protection::ReadExecute)?;
        }
        pause_for(whom).await?;
        // In memory of its own, for which the pause has admitted the process: it would make the future of every call
        // that loads a program too large.
        let stack = Box::pin(self.write_stack(space, shared, whom, identity)).await?;
        let first = self.linker.as_ref().unwrap_or(&self.program);
        Ok(UserContext::new(first.image.entry(), stack))
    }

    /// Whether a user may read the files of the program, as the program itself can from its memory.
    fn is_readable_by(&self, subject: Option<&Subject>) -> bool {
        let files = [Some(&self.program), self.linker.as_ref()];
        let ownership = |file: &Executable| file.content.place().metadata().ownership();
        files.into_iter().flatten().all(|file| rights::permits(subject, ownership(file), READ))
    }

    /// Gives a process the users and groups with which it executes the program, in memory that was charged for.
    fn change_identity(&self, process: &Process, charge: Charge) {
        let place = self.program.content.place();
        let may_count = !process.no_new_rights.load(Ordering::Relaxed) && !mounts::forbids_set_user(&place.mount);
        let program = place.metadata().ownership();
        // The users as they are now: another thread may have given some up since the program was found. And the rights
        // of the file: with its owner or its mode, it may have got bits that are not meant for these users.
        let executing =
            |now: &Identity| now.executing(program, may_count && rights::permits(Some(&now.files), program, EXECUTE));
        let is_readable = self.is_readable_by(identity::subject(&process.whom()));
        let new = process.identity.replace(charge, executing, |old, new| {
            if new.is_secure() || !is_readable {
                process.dump.permit(false);
            }
            let after = old.capabilities_after(new);
            // Also those that were made effective for another user than 0 are not for the next program.
            let after = CapabilitiesAfter { lose_effective: !new.is_privileged(), ..after };
            process.authority.follow_users(after, false);
        });
        process.dump.permit(is_readable && !new.is_secure());
        if new.is_secure() {
            process.set_signal_of_orphan(0);
        }
    }

    /// Replaces the program of a process that is down to one worker, and has [charged](identity::charge) for its
    /// identity. After an error the process cannot go on.
    ///
    /// # Cancellation
    /// The process is left without a program.
    pub(crate) async fn carry_out(&self, process: &Process, identity: Charge) -> Result<UserContext, Errno> {
        let mut at = 0;
        loop {
            // Dropped outside of the lock.
            let looked = process.descriptors.lock().take_closing(&mut at);
            let Some(closing) = looked else { break };
            drop(closing);
            steps::pause(process).await;
        }
        // Its parent's memory, if it is that, stays as it is.
        process.address_space.leave_lender();
        while process.space().clear_part() {
            steps::pause(process).await;
        }
        process.address_space.end_loan();
        process.timers.start_afresh();
        process.beginnings.clear().await;
        process.forget_completions().await;
        process.set_name(crate::observing::trace::short_name(&self.path));
        call_log::begins(process);
        process.note_execution();
        process.keeps_capabilities.store(false, Ordering::Relaxed);
        self.change_identity(process, identity);
        let old = process.executable.lock().replace(self.program.content.running().clone());
        drop(old);
        self.load(process.space(), &process.shared, For::Itself(process), &process.whom()).await
    }

    /// Loads the program into an empty address space.
    ///
    /// # Cancellation
    /// A part of it is loaded.
    async fn load_anew(&self, space: Arc<Space>, whom: For<'_>, identity: &Whom) -> Result<Loaded, Errno> {
        pause_for(whom).await?;
        let shared = Shared::new()?;
        pause_for(whom).await?;
        let context = self.load(&space, &shared, whom, identity).await?;
        Ok(Loaded { space, shared, context })
    }

    /// Starts the loaded program in a new process.
    fn start(
        self,
        loaded: Loaded,
        parent: u32,
        origin: Origin,
        directory: Place,
        descriptors: Descriptors,
        (base_priority, rank): (Priority, ClassAndNice),
    ) -> Result<u32, Errno> {
        // Loading has waited.
        origin.account.admit()?;
        let charge = origin.account.charge(Resource::Memory, process::MEMORY)?;
        let name = crate::observing::trace::short_name(&self.path);
        let Loaded { space, shared, context } = loaded;
        let memory = ProcessMemory::new(space, &origin.account);
        let above = table::find(parent);
        let group = above.as_ref().map(|parent| parent.group_and_session());
        let process = table::create(|id| {
            Ok(Process::new(id, parent, group, origin, charge, memory, shared, descriptors, directory, base_priority))
        })?;
        process.set_class_and_nice(|_| Ok(rank))?;
        let id = process.id;
        process.set_name(name);
        call_log::begins(&process);
        *process.executable.lock() = Some(self.program.content.running().clone());
        // COPS's programs expect `EPIPE`.
        if !self.program.image.is_for_cops() {
            process.signals.begin_as_on_linux();
        }
        let creator = above.as_ref().and_then(|above| above.worker(0));
        if let Some(above) = above {
            process.creation_mask.store(above.creation_mask.load(Ordering::Relaxed), Ordering::Relaxed);
            process.no_new_rights.store(above.no_new_rights.load(Ordering::Relaxed), Ordering::Relaxed);
            process.set_no_terminal(above.has_no_terminal());
            process.watched.set_as(&above.watched);
        }
        let inherit = |worker: &Worker| creator.iter().for_each(|creator| worker.inherit_settings(creator));
        if let Err(error) = switching::start_worker(&process, Box::new(context), inherit) {
            table::discard(&process);
            return Err(error);
        }
        Ok(id)
    }
}

/// The folders of programs that the first process is told: those of Linux's distributions, of which the archive of COPS
/// has one.
const ALL_PROGRAMS: &[u8] = b"PATH=/bin:/sbin:/usr/bin:/usr/sbin";

/// A program in its address space, before there is a process.
struct Loaded {
    space: Arc<Space>,
    shared: Shared,
    /// The initial registers.
    context: UserContext,
}

/// Performs the `spawn` call.
///
/// # Cancellation
/// There is no new process.
#[doc(alias = "posix_spawn")]
#[doc(alias = "fork")]
pub(crate) async fn spawn(
    process: Arc<Process>,
    path: usize,
    arguments: usize,
    environment: usize,
    descriptors: usize,
    priority: usize,
) -> Result<usize, Errno> {
    table::require_depth(&process)?;
    let plan = Plan::read(&process, Execution { from: None, path, arguments, environment }).await?;
    // Others may have used memory up meanwhile.
    process.account.admit()?;
    let account = process.account.of_a_child()?;
    let place = ProcessPlace::new(&process.account)?;
    let mut inherited = Descriptors::new(&account);
    let mut numbers = [0i32, 1, 2];
    if descriptors != 0 {
        let mut bytes = [0; 12];
        process.copy_in(descriptors, &mut bytes)?;
        for (position, number) in numbers.iter_mut().enumerate() {
            *number = i32::from_le_bytes(core::array::from_fn(|i| bytes[position * 4 + i]));
        }
    }
    {
        let own = process.descriptors.lock();
        for (position, &number) in numbers.iter().enumerate() {
            if number < 0 && descriptors != 0 {
                continue;
            }
            match own.get(number as usize) {
                Ok(file) => drop(inherited.replace(position, file.clone(), false)?),
                // Without a list a child gets the caller's 0, 1 and 2 as far as they exist.
                Err(error) if descriptors != 0 => return Err(error),
                Err(_) => {}
            }
        }
    }
    // All ones: the caller's priority, class and nice value. A child is never more important than its parent may be.
    let inherited_rank = process.class_and_nice().of_a_child();
    let (base_priority, rank) = match priority {
        usize::MAX => (process.base_priority(), inherited_rank),
        number => {
            let priority = Priority::new(u8::try_from(number).map_err(|_| Errno::EINVAL)?).ok_or(Errno::EINVAL)?;
            (priority, inherited_rank.with_own_priority())
        }
    };
    let directory = process.directory.lock().clone();
    let priorities = (base_priority.limited_to(process.standing.ceiling()), rank);
    let identity = identity_of_a_child(&process, &account)?;
    let beginning = process.beginnings.add(&account)?;
    let begun = match plan.load_anew(beginning.space.clone(), For::Parent(&process), &identity).await {
        Ok(loaded) => {
            let (standing, authority) = (process.standing.inherited(), process.authority.of_a_program(&identity));
            let dump = Dump::with(process.dump.filter(), plan.is_readable_by(identity::subject(&identity)));
            let origin = Origin { account, place, standing, authority, identity, dump };
            plan.start(loaded, process.id, origin, directory, inherited, priorities)
        }
        Err(error) => Err(error),
    };
    process.beginnings.finish(&beginning, begun).await.map(|id| id as usize)
}

/// Returns the users and groups with which a program begins that a process starts: as if the process had executed it.
/// The bits to set user and group do not count, which are for programs that take the place of their caller.
fn identity_of_a_child(process: &Process, account: &Arc<Account>) -> Result<Whom, Errno> {
    match process.whom() {
        None => Ok(None),
        Some(whom) => identity::hold(whom.executing(Ownership::default(), false), account),
    }
}

/// Calls a function with each part of a program's file that is mapped into a process, in which the program was moved by
/// this distance from its place in the file.
pub(crate) fn mapped_files(file: &Place, bias: u64, mut each: impl FnMut(MappedFile)) {
    let Ok(content) = Content::of(file.clone(), None) else { return };
    // A process that has run so far has left the start of its file in memory, most often.
    let Ok(Some(head)) = read_in_place(&content, &(0..HEAD_LENGTH as u64)) else { return };
    let Ok(image) = Image::parse_head(&head, content.size(), ::program::DEFAULT_BASE) else { return };
    let moved = match image.placement() {
        ::program::Placement::Fixed => 0,
        ::program::Placement::Moved { bias: here } => bias.wrapping_sub(here),
    };
    for segment in image.segments() {
        let start = segment.pages().start;
        let end = (segment.memory.start + (segment.file.end - segment.file.start)).next_multiple_of(PAGE_SIZE as u64);
        let page = segment.file.start / PAGE_SIZE as u64;
        each(MappedFile { start: start.wrapping_add(moved), end: end.wrapping_add(moved), page });
    }
}

/// Starts the first process with the console as its descriptors 0, 1 and 2.
///
/// # Cancellation
/// There is no process.
#[doc(alias = "run_init_process")]
pub(crate) async fn start_first(path: &str, arguments: Vec<Vec<u8>>) -> Result<(), Errno> {
    let environment = Texts::of(&[ALL_PROGRAMS, b"HOME=/"]).map_err(stack_error)?;
    let found = Found::look_up(&mounts::root(), None, path.as_bytes(), 0, For::Nobody).await?;
    let mut given = found.first_arguments()?;
    for argument in arguments.iter().skip(found.replaced()) {
        given.push(argument).map_err(stack_error)?;
    }
    let (program, layout) = found.check()?;
    let linker = linker_of(&program, &mounts::root(), &layout, For::Nobody).await?;
    let account = Account::first().clone();
    let path = path.as_bytes().to_vec();
    let plan = Plan { path, program, linker, layout, arguments: given, environment, _room: None };
    let place = ProcessPlace::new(&account)?;
    let mut descriptors = Descriptors::new(&account);
    let console = Arc::new(OpenFile::new(console::open()?, Access::ReadWrite, false, file::charge(&account)?));
    for number in 0..3 {
        descriptors.replace(number, console.clone(), false)?;
    }
    let (standing, authority) = (Standing::of_the_first(), Authority::of_the_first(authority::of_the_first()));
    let space = Beginning::new(&account)?.space;
    let origin = Origin { account, place, standing, authority, identity: None, dump: Dump::new() };
    let loaded = plan.load_anew(space, For::Nobody, &None).await?;
    plan.start(loaded, 0, origin, mounts::root(), descriptors, (Priority::DEFAULT, ClassAndNice::default()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use abi_unix::SystemCall;

    use super::*;
    use crate::process::accounts::ResourceLimit;
    use crate::process::user::LONGEST_PATH;
    use crate::testing::{DATA, Program, run};

    fn list(program: &mut Program, strings: &[&[u8]]) -> usize {
        let mut words: Vec<usize> = strings.iter().map(|string| program.store(string)).collect();
        words.push(0);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        program.store(&bytes)
    }

    fn spawn(program: &mut Program, path: usize, arguments: usize, environment: usize) -> Result<usize, Errno> {
        program.call(SystemCall::Spawn, [path, arguments, environment, 0, usize::MAX])
    }

    fn string(program: &Program, address: usize) -> Vec<u8> {
        program.process().copy_in_string(address, 1000, Errno::E2BIG).unwrap()
    }

    type FirstStack = (Vec<Vec<u8>>, Vec<Vec<u8>>, alloc::collections::BTreeMap<u64, usize>);

    /// Reads arguments, environment and auxiliary vector.
    fn first_stack(program: &Program) -> FirstStack {
        let word = |index: usize| program.read_u64(program.stack + 8 * index) as usize;
        let strings = |at: &mut usize| {
            let mut found = Vec::new();
            while word(*at) != 0 {
                found.push(string(program, word(*at)));
                *at += 1;
            }
            *at += 1;
            found
        };
        let mut at = 1;
        let arguments = strings(&mut at);
        assert_eq!(word(0), arguments.len());
        let environment = strings(&mut at);
        let mut vector = alloc::collections::BTreeMap::new();
        while word(at) != 0 {
            vector.insert(word(at) as u64, word(at + 1));
            at += 2;
        }
        (arguments, environment, vector)
    }

    /// Makes an executable file with these bytes, and returns the address of its path.
    fn file(program: &mut Program, path: &[u8], bytes: &[u8]) -> usize {
        let path = program.store(path);
        let file = program.call(SystemCall::Open, [0, path, 0o102, 0o755]).unwrap();
        let place = program.store(bytes);
        assert_eq!(program.call(SystemCall::Write, [file, place, bytes.len()]), Ok(bytes.len()));
        assert_eq!(program.call(SystemCall::Close, [file]), Ok(0));
        path
    }

    fn remove(program: &mut Program, paths: &[usize]) {
        for &path in paths {
            assert_eq!(program.call(SystemCall::Unlink, [0, path, 0]), Ok(0));
        }
    }

    /// A script's interpreter gets its path, the one argument, the script's path, and the other arguments.
    #[test]
    fn scripts_name_the_program_that_runs() {
        run(|program| {
            let arguments = list(program, &[b"zero\0", b"one\0", b"two\0"]);
            let first = file(program, b"/tmp/first\0", b"#! /bin/test  a b \nrest");
            let second = file(program, b"/tmp/second\0", b"#!/tmp/first\n");
            const OF_THE_FIRST: &[&[u8]] = &[b"/bin/test", b"a b", b"/tmp/first", b"one", b"two"];
            const OF_THE_SECOND: &[&[u8]] = &[b"/bin/test", b"a b", b"/tmp/first", b"/tmp/second", b"one", b"two"];
            for (path, expected) in [(first, OF_THE_FIRST), (second, OF_THE_SECOND)] {
                let child = program.spawn_with(path, arguments, 0, move |program| {
                    let (arguments, _, vector) = first_stack(program);
                    assert_eq!(arguments, expected);
                    assert_eq!(string(program, vector[&auxiliary::EXECFN]), *expected[expected.len() - 3]);
                });
                let child = child.unwrap();
                assert_eq!(program.wait_for(child), Ok((child, 0)));
            }
            // Without arguments there is none to be replaced.
            let none = list(program, &[]);
            let child = program.spawn_with(first, none, 0, |program| {
                assert_eq!(first_stack(program).0, [&b"/bin/test"[..], b"a b", b"/tmp/first"]);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            remove(program, &[first, second]);
        });
    }

    /// The bits to set user and group count with the rights that the file grants together with them.
    #[test]
    fn the_owner_of_a_program_counts_for_those_who_may_execute_it_then() {
        run(|program| {
            let bytes = crate::testing::executable();
            let path = file(program, b"/tmp/set-user\0", &bytes);
            let child = program.fork(move |program| {
                let process = program.process();
                let execution = Execution { from: None, path, arguments: 0, environment: 0 };
                let plan = {
                    let mut read = Box::pin(Plan::read(&process, execution));
                    let mut cx = core::task::Context::from_waker(steps::IN_PLACE);
                    loop {
                        if let core::task::Poll::Ready(plan) = read.as_mut().poll(&mut cx) {
                            break plan.unwrap();
                        }
                    }
                };
                let mode = |program: &mut Program, mode: usize| {
                    program.call(SystemCall::ChangeModeAt, [0, path, mode, 0]).unwrap();
                };
                program.call(SystemCall::ChangeOwnerAt, [0, path, 5, 5, 0]).unwrap();
                mode(program, 0o4700);
                program.call(SystemCall::SetUserTriple, [1000, 1000, 1000]).unwrap();
                plan.change_identity(&process, identity::charge(&process.account).unwrap());
                assert_eq!(process.identity_value().users.effective, 1000);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            remove(program, &[path]);
        });
    }

    /// Also by a fork; and a file that is open for writing is not run.
    #[test]
    fn the_file_of_a_program_that_runs_is_not_written() {
        const PATH: &[u8] = b"/tmp/runs\0";
        const WRITE: usize = 0o1;
        const TRUNCATE: usize = 0o1000;
        fn try_all(program: &mut Program) -> [Result<usize, Errno>; 5] {
            let path = program.store(PATH);
            let ways = [WRITE, 0o2, TRUNCATE, WRITE | TRUNCATE].map(|flags| {
                let opened = program.call(SystemCall::Open, [0, path, flags, 0]);
                opened.and_then(|file| program.close(file))
            });
            let read = program.call(SystemCall::Open, [0, path, 0, 0]).unwrap();
            program.close(read).unwrap();
            let [first, second, third, fourth] = ways;
            let size = crate::testing::executable().len();
            [first, second, third, fourth, program.call(SystemCall::TruncateAt, [path, size])]
        }
        run(|program| {
            let arguments = list(program, &[b"x\0"]);
            let bytes = crate::testing::executable();
            let path = file(program, PATH, &bytes);
            let child = program.spawn_with(path, arguments, 0, |program| {
                assert_eq!(try_all(program), [Err(Errno::ETXTBSY); 5]);
                let child = program.fork(|program| assert_eq!(try_all(program), [Err(Errno::ETXTBSY); 5])).unwrap();
                assert_eq!(program.wait_for(child), Ok((child, 0)));
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            // A program that nobody runs any more.
            let writer = program.call(SystemCall::Open, [0, path, WRITE, 0]).unwrap();
            assert_eq!(spawn(program, path, arguments, 0), Err(Errno::ETXTBSY));
            program.close(writer).unwrap();
            let child = program.spawn_with(path, arguments, 0, |_| {}).unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!(try_all(program), [Ok(0); 5]);
            remove(program, &[path]);
        });
    }

    #[test]
    fn scripts_without_an_interpreter_are_refused() {
        run(|program| {
            let arguments = list(program, &[b"x\0"]);
            let path = program.store(b"/tmp/script\0");
            for (text, error) in [
                (&b"#!\n"[..], Errno::ENOEXEC),
                (b"#!/bin/missing\n", Errno::ENOENT),
                (b"#!/dev/null\n", Errno::EACCES),
                // Itself, again and again.
                (b"#!/tmp/script\n", Errno::ELOOP),
            ] {
                file(program, b"/tmp/script\0", text);
                assert_eq!(spawn(program, path, arguments, 0), Err(error));
                remove(program, &[path]);
            }
            // Five scripts are a chain, six are too many.
            let mut paths = Vec::new();
            let mut interpreter = b"/bin/test".to_vec();
            for number in b'0'..b'6' {
                let text = [b"#!", &interpreter[..], b"\n"].concat();
                interpreter = [b"/tmp/", &[number][..]].concat();
                paths.push(file(program, &[&interpreter[..], b"\0"].concat(), &text));
            }
            let child = program.spawn_with(paths[4], arguments, 0, |_| {}).unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            assert_eq!(spawn(program, paths[5], arguments, 0), Err(Errno::ELOOP));
            remove(program, &paths);
            assert_eq!(program.wait_for(usize::MAX), Err(Errno::ECHILD));
        });
    }

    /// Makes a program that names a dynamic linker in its first page.
    fn dynamic(linker: &[u8]) -> Vec<u8> {
        let mut bytes = crate::testing::executable();
        let (header, path) = (64 + 2 * 56, 0x200);
        bytes[56] = 3;
        bytes[header..header + 4].copy_from_slice(&3u32.to_le_bytes());
        for (at, word) in [(8, path as u64), (32, linker.len() as u64), (40, linker.len() as u64)] {
            bytes[header + at..header + at + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes[path..path + linker.len()].copy_from_slice(linker);
        bytes
    }

    #[test]
    fn dynamic_programs_begin_in_their_linker() {
        run(|program| {
            let arguments = list(program, &[b"x\0"]);
            // A position-independent file with a linker of its own, which does not count.
            let mut linker = dynamic(b"/bin/missing\0");
            linker[16] = 3;
            let linker = file(program, b"/tmp/linker\0", &linker);
            let path = file(program, b"/tmp/dynamic\0", &dynamic(b"/tmp/linker\0"));
            let child = program.spawn_with(path, arguments, 0, |program| {
                let (_, _, vector) = first_stack(program);
                let base = vector[&auxiliary::BASE];
                assert!(base > 0 && base.is_multiple_of(PAGE_SIZE));
                assert_eq!(program.read(base + crate::testing::CODE as usize, 4), b"\x7fELF");
                assert_eq!(vector[&auxiliary::ENTRY], crate::testing::CODE as usize);
                assert_eq!(program.pc, base + crate::testing::CODE as usize);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            remove(program, &[linker, path]);
        });
    }

    /// As programs of Linux expect it; they are all that do not say that they were built for COPS.
    #[test]
    fn broken_pipes_end_programs_of_linux() {
        run(|program| {
            let arguments = list(program, &[b"x\0"]);
            let mut linker = dynamic(b"/bin/missing\0");
            linker[16] = 3;
            let linker = file(program, b"/tmp/linker\0", &linker);
            let path = file(program, b"/tmp/dynamic\0", &dynamic(b"/tmp/linker\0"));
            let writes = |program: &mut Program| {
                let (reader, writer) = program.pipe(0);
                program.close(reader).unwrap();
                assert_eq!(program.write_to(writer, b"x"), Err(Errno::EPIPE));
            };
            // Without the word for COPS, the last of its headers.
            let mut fixed = crate::testing::executable();
            fixed[56] -= 1;
            let fixed = file(program, b"/tmp/static\0", &fixed);
            let broken = u32::from(::signals::Signal::PIPE.number());
            for (path, status) in [(path, broken), (fixed, broken), (program.store(crate::testing::PATH), 0)] {
                let child = program.spawn_with(path, arguments, 0, writes).unwrap();
                assert_eq!(program.wait_for(child), Ok((child, status)));
            }
            remove(program, &[linker, path, fixed]);
        });
    }

    #[test]
    fn unusable_linkers_are_refused() {
        run(|program| {
            let arguments = list(program, &[b"x\0"]);
            let text = file(program, b"/tmp/text\0", b"not a program");
            for (linker, error) in [
                (&b"/bin/missing\0"[..], Errno::ENOENT),
                (b"/dev/null\0", Errno::EACCES),
                (b"/tmp/text\0", Errno::ELIBBAD),
                // At the program's own addresses.
                (b"/bin/test\0", Errno::ENOEXEC),
                (b"no NUL", Errno::ENOEXEC),
                (b"a\0b\0", Errno::ENOEXEC),
            ] {
                let path = file(program, b"/tmp/dynamic\0", &dynamic(linker));
                assert_eq!(spawn(program, path, arguments, 0), Err(error), "{linker:?}");
                remove(program, &[path]);
            }
            remove(program, &[text]);
            assert_eq!(program.wait_for(usize::MAX), Err(Errno::ECHILD));
        });
    }

    /// Contents of a program's first stack: the number of arguments, their addresses, those of the environment, and the
    /// auxiliary vector.
    #[test]
    fn a_program_finds_its_arguments_on_its_stack() {
        run(|program| {
            let path = program.store(crate::testing::PATH);
            let arguments = list(program, &[b"name\0", b"\0", b"two words\0"]);
            let environment = list(program, &[b"A=1\0"]);
            let child = program.spawn_with(path, arguments, environment, |program| {
                assert_eq!(program.stack % 16, 0);
                let (arguments, environment, vector) = first_stack(program);
                assert_eq!(arguments, [b"name".to_vec(), b"".to_vec(), b"two words".to_vec()]);
                assert_eq!(environment, [b"A=1"]);
                assert_eq!(vector[&auxiliary::BASE], 0);
                assert_eq!(vector[&auxiliary::HWCAP], 0x112d);
                assert_eq!(vector[&auxiliary::PAGESZ], PAGE_SIZE);
                assert_eq!(vector[&auxiliary::ENTRY], crate::testing::CODE as usize);
                assert_eq!(string(program, vector[&auxiliary::EXECFN]), &crate::testing::PATH[..9]);
                let shared = &program.process().shared;
                assert_eq!(vector[&auxiliary::COPS_COMPLETION_RING], shared.address(COMPLETION_RING_OFFSET));
                assert_ne!(program.read(vector[&auxiliary::RANDOM], 16), [0; 16]);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }

    #[test]
    fn files_that_are_no_program_are_refused_and_leave_nothing() {
        run(|program| {
            let arguments = list(program, &[b"x\0"]);
            let paths: [(&[u8], Errno); 5] = [
                (b"/bin/missing\0", Errno::ENOENT),
                (b"/bin\0", Errno::EACCES),
                (b"/bin/test/x\0", Errno::ENOTDIR),
                (b"\0", Errno::ENOENT),
                (b"/dev/null\0", Errno::EACCES),
            ];
            for (path, error) in paths {
                let path = program.store(path);
                assert_eq!(spawn(program, path, arguments, 0), Err(error));
            }
            for text in [&b"#! "[..], b"\x7fELF"] {
                let path = file(program, b"/tmp/text\0", text);
                assert_eq!(spawn(program, path, arguments, 0), Err(Errno::ENOEXEC));
                remove(program, &[path]);
            }
            let long = program.store(&[b'a'; LONGEST_PATH]);
            assert_eq!(spawn(program, long, arguments, 0), Err(Errno::ENAMETOOLONG));
            assert_eq!(spawn(program, 0x1000, arguments, 0), Err(Errno::EFAULT));
            assert_eq!(program.wait_for(usize::MAX), Err(Errno::ECHILD));
        });
    }

    #[test]
    fn lists_of_strings_are_read_to_their_limits() {
        run(|program| {
            let path = program.store(crate::testing::PATH);
            for bad in [0x1000, usize::MAX - 7, USER_END - 8] {
                assert_eq!(spawn(program, path, bad, 0), Err(Errno::EFAULT), "{bad:#x}");
            }
            let bad_string = program.store(&[0x1000usize.to_le_bytes(), [0; 8]].concat());
            assert_eq!(spawn(program, path, bad_string, 0), Err(Errno::EFAULT));
            let list = |strings: &[usize], count: usize| -> Vec<u8> {
                strings.repeat(count).iter().chain(&[0]).flat_map(|word| word.to_le_bytes()).collect()
            };
            // One string that is too long, and one that is not, often enough.
            let area = program.call(SystemCall::Map, [0, 1 << 20, 3, 0x22, usize::MAX, 0]).unwrap();
            let (too_long, arguments) = (area, area + (1 << 19));
            program.process().copy_out(too_long, &[&[b'x'; LONGEST_STRING][..], &[0]].concat()).unwrap();
            let (longest, empty) = (too_long + 1, too_long + LONGEST_STRING);
            let usual = program.process().account.setting(limit::STACK as usize);
            let small = ResourceLimit { soft: 64 * 1024, ..usual };
            for (stack, string, count, expected) in [
                (usual, too_long, 1, Err(Errno::E2BIG)),
                (usual, longest, 16, Err(Errno::E2BIG)),
                (usual, longest, 15, Ok(())),
                (usual, empty, 20_000, Ok(())),
                // However small the stack, there is some room.
                (small, longest, 2, Err(Errno::E2BIG)),
                (small, too_long + 60_000, 1, Ok(())),
            ] {
                program.process().account.set_setting(limit::STACK as usize, stack);
                program.process().copy_out(arguments, &list(&[string], count)).unwrap();
                let spawned = match expected {
                    Ok(()) => program.spawn_with(path, arguments, 0, |_| {}),
                    Err(_) => spawn(program, path, arguments, 0),
                };
                assert_eq!(spawned.map(|_| ()), expected, "{count}");
                if let Ok(child) = spawned {
                    program.wait_for(child).unwrap();
                }
            }
            program.process().account.set_setting(limit::STACK as usize, usual);
        });
    }

    #[test]
    fn a_child_has_the_descriptors_that_it_is_given_and_no_other() {
        run(|program| {
            let (reader, writer) = program.pipe(0);
            let bytes: Vec<u8> =
                [writer as i32, -1, reader as i32].iter().flat_map(|word| word.to_le_bytes()).collect();
            let descriptors = program.store(&bytes);
            let child = program.spawn_given(descriptors, usize::MAX, |program| {
                assert_eq!(program.write_to(0, b"to itself"), Ok(9));
                assert_eq!(program.write_to(1, b"x"), Err(Errno::EBADF));
                assert_eq!(program.read_from(2, 20), Ok(b"to itself".to_vec()));
                assert_eq!(program.call(SystemCall::Duplicate, [0]), Ok(1));
                assert_eq!(program.call(SystemCall::Duplicate, [0]), Ok(3));
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
            let closed = program.store(&[99i32.to_le_bytes(), [0xff; 4], [0xff; 4]].concat());
            assert_eq!(program.spawn_given(closed, usize::MAX, |_| {}), Err(Errno::EBADF));
            assert_eq!(program.spawn_given(0x1000, usize::MAX, |_| {}), Err(Errno::EFAULT));
            assert_eq!(program.spawn_given(0, 64, |_| {}), Err(Errno::EINVAL));
            assert_eq!(program.wait_for(usize::MAX), Err(Errno::ECHILD));
        });
    }

    #[test]
    fn a_child_begins_in_the_directory_of_its_parent() {
        run(|program| {
            let path = program.store(b"/tmp\0");
            assert_eq!(program.call(SystemCall::ChangeDirectory, [path]), Ok(0));
            let child = program.spawn(|program| {
                let place = program.place(16);
                assert_eq!(program.call(SystemCall::GetCurrentDirectory, [place, 16]), Ok(5));
                assert_eq!(program.read(place, 5), b"/tmp\0");
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }

    /// Addresses differ from process to process, and memory of one is not seen in another.
    #[test]
    fn memory_lies_elsewhere_each_time() {
        run(|program| {
            program.write(DATA + 4096, b"mine");
            let own = program.process().shared.address(0);
            let stack = program.stack;
            let child = program.spawn(move |program| {
                assert_ne!(program.process().shared.address(0), own);
                assert_ne!(program.stack, stack);
                assert_eq!(program.read(DATA + 4096, 4), [0; 4]);
            });
            let child = child.unwrap();
            assert_eq!(program.wait_for(child), Ok((child, 0)));
        });
    }
}
