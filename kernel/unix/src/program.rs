//! Programs: from a path and two lists of strings to a process that is ready to run.
//!
//! A [`Plan`] is everything that can fail for reasons of the caller: the file was found and is an executable of this
//! machine, the strings were read and fit. Only then is memory changed, which for `execve` means that the old program is
//! given up.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use ::program::stack::{AuxiliaryValue, Contents, StackError};
use ::program::{HEAD_LENGTH, Image, ImageError, Protection as SegmentProtection};
use abi_queue::Priority;
use abi_queue::pages::{COMPLETION_RING_ADDRESS, GLOBAL_PAGE_ADDRESS, IMAGE_ADDRESS, PAGE_SIZE, PROCESS_PAGE_ADDRESS};
use abi_unix::Errno;
use abi_unix::types::auxiliary;
use filesystem::Node;
use hal_api::UserContext;
use memory::OutOfMemory;
use memory::space::{Limits, MapError, Placement, Sharing};
use memory::sv39::Protection;
use usermode::{Kind, Space};

use crate::descriptor::Descriptors;
use crate::files::{self, Content};
use crate::interrupts;
use crate::process::{self, Process};
use crate::scheduling::Standing;
use crate::shared::{self, Shared};
use crate::user::USER_END;
use crate::worker::Worker;

/// First address above the first worker's stack.
const STACK_TOP: usize = 0x3f_ff00_0000;
/// Largest size of that stack; its pages come into being when they are touched.
const STACK_SIZE: usize = 8 << 20;
/// Most bytes of arguments and environment (Linux: a quarter of the stack).
const LARGEST_STRINGS: usize = 128 * 1024;
/// Most strings in one list.
const MOST_STRINGS: usize = 4096;
/// Longest path.
pub const LONGEST_PATH: usize = 4096;

/// A program that is ready to be loaded.
pub struct Plan {
    path: Vec<u8>,
    content: Content,
    image: Image,
    arguments: Vec<Vec<u8>>,
    environment: Vec<Vec<u8>>,
}

/// The error numbers of what can go wrong with mappings.
pub fn map_error(error: MapError) -> Errno {
    match error {
        MapError::InvalidRange => Errno::EINVAL,
        MapError::Occupied => Errno::EEXIST,
        MapError::Forbidden => Errno::EACCES,
        MapError::NoSpace | MapError::NotMapped | MapError::TooManyRegions | MapError::OutOfMemory => Errno::ENOMEM,
    }
}

fn map_anonymous(space: &Space, start: usize, length: usize) -> Result<(), Errno> {
    let place = Placement::FixedIfFree(start as u64);
    let mapped = space.lock().map_anonymous(place, length as u64, Protection::ReadWrite, "");
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

/// Reads a NULL-terminated list of string addresses, and the strings.
fn read_strings(process: &Process, mut address: usize, left: &mut usize) -> Result<Vec<Vec<u8>>, Errno> {
    let mut strings = Vec::new();
    if address == 0 {
        return Ok(strings);
    }
    loop {
        let mut word = [0; 8];
        process.copy_in(address, &mut word)?;
        let pointer = usize::from_le_bytes(word);
        if pointer == 0 {
            return Ok(strings);
        }
        let string = process.copy_in_string(pointer, *left, Errno::E2BIG)?;
        *left = left.saturating_sub(string.len() + 1);
        if strings.len() >= MOST_STRINGS {
            return Err(Errno::E2BIG);
        }
        strings.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
        strings.push(string);
        address = address.checked_add(8).filter(|&next| next < USER_END).ok_or(Errno::EFAULT)?;
    }
}

impl Plan {
    /// Reads what a process asks for: path, arguments and environment from its memory.
    pub fn read(process: &Process, path: usize, arguments: usize, environment: usize) -> Result<Plan, Errno> {
        let path = files::read_path(process, path)?;
        let mut left = LARGEST_STRINGS;
        let arguments = read_strings(process, arguments, &mut left)?;
        let environment = read_strings(process, environment, &mut left)?;
        let directory = process.directory.lock().clone();
        Plan::new(&directory, path, arguments, environment)
    }

    /// Finds and checks a program.
    pub fn new(
        directory: &Node,
        path: Vec<u8>,
        arguments: Vec<Vec<u8>>,
        environment: Vec<Vec<u8>>,
    ) -> Result<Plan, Errno> {
        let content = files::executable(directory, &path)?;
        let mut head = [0; HEAD_LENGTH];
        let length = content.read_at(0, &mut head);
        let image = Image::parse_head(&head[..length], content.size(), ::program::DEFAULT_BASE).map_err(image_error)?;
        Ok(Plan { path, content, image, arguments, environment })
    }

    /// Fills an empty address space and gives the first registers.
    fn load(&self, space: &Space, shared: &Shared) -> Result<UserContext, Errno> {
        let mut highest = 0;
        for segment in self.image.segments() {
            let pages = segment.pages();
            let (start, length) = (pages.start as usize, (pages.end - pages.start) as usize);
            highest = highest.max(pages.end);
            map_anonymous(space, start, length)?;
            let mut offset = segment.file.start;
            let mut address = segment.memory.start as usize;
            let mut piece = [0; 1024];
            while offset < segment.file.end {
                let wanted = piece.len().min((segment.file.end - offset) as usize);
                let count = self.content.read_at(offset, &mut piece[..wanted]);
                if count == 0 {
                    return Err(Errno::EIO);
                }
                space.lock().copy_out(address as u64, &piece[..count]).map_err(|_| Errno::ENOMEM)?;
                offset += count as u64;
                address += count;
            }
            let protection = match segment.protection {
                SegmentProtection::Read => Protection::Read,
                SegmentProtection::ReadWrite => continue,
                SegmentProtection::ReadExecute => Protection::ReadExecute,
            };
            let changed = space.lock().protect(pages, protection);
            usermode::flush(changed.map_err(map_error)?);
        }
        space.lock().set_break_start(highest);
        map_anonymous(space, STACK_TOP - STACK_SIZE, STACK_SIZE)?;
        for (address, frames) in shared.mappings() {
            map_shared(space, address, frames, Sharing::ReadWrite, Protection::ReadWrite)?;
        }
        if let Some((address, frames)) = shared::global_mapping() {
            map_shared(space, address, frames, Sharing::ReadOnly, Protection::Read)?;
        }
        if let Some((address, frames)) = shared::image_mapping() {
            map_shared(space, address, frames, Sharing::ReadOnly, Protection::ReadExecute)?;
        }
        let mut random = [0; 16];
        crate::random::bytes(&mut random);
        let number = |value: usize| AuxiliaryValue::Number(value as u64);
        let headers = self.image.program_headers();
        let header = |value: fn(::program::ProgramHeaders) -> u64| AuxiliaryValue::Number(headers.map_or(0, value));
        let vector = [
            (auxiliary::SYSINFO_EHDR, number(IMAGE_ADDRESS)),
            (auxiliary::PHDR, header(|headers| headers.address)),
            (auxiliary::PHENT, header(|headers| headers.entry_size)),
            (auxiliary::PHNUM, header(|headers| headers.count)),
            (auxiliary::PAGESZ, number(PAGE_SIZE)),
            (auxiliary::ENTRY, AuxiliaryValue::Number(self.image.entry())),
            (auxiliary::UID, number(0)),
            (auxiliary::EUID, number(0)),
            (auxiliary::GID, number(0)),
            (auxiliary::EGID, number(0)),
            (auxiliary::SECURE, number(0)),
            (auxiliary::CLKTCK, number(100)),
            (auxiliary::RANDOM, AuxiliaryValue::Bytes(&random)),
            (auxiliary::EXECFN, AuxiliaryValue::Text(&self.path)),
            (auxiliary::COPS_PROCESS_PAGE, number(PROCESS_PAGE_ADDRESS)),
            (auxiliary::COPS_GLOBAL_PAGE, number(GLOBAL_PAGE_ADDRESS)),
            (auxiliary::COPS_COMPLETION_RING, number(COMPLETION_RING_ADDRESS)),
            (auxiliary::COPS_HARTS, number(crate::harts())),
            (auxiliary::COPS_USER_INTERRUPTS, number(usize::from(space.kind() == Kind::Virtualised))),
        ];
        let contents = Contents { arguments: &self.arguments, environment: &self.environment, auxiliary: &vector };
        let stack = contents.build(STACK_TOP as u64, 2 * LARGEST_STRINGS).map_err(|error| match error {
            StackError::TooBig => Errno::E2BIG,
            StackError::NulInString => Errno::EINVAL,
            StackError::OutOfMemory => Errno::ENOMEM,
        })?;
        space.lock().copy_out(stack.pointer(), stack.bytes()).map_err(|_| Errno::ENOMEM)?;
        Ok(UserContext::new(self.image.entry(), stack.pointer()))
    }

    /// Replaces the program of a process that is down to one worker. After an error the process cannot go on.
    pub fn carry_out(&self, process: &Process) -> Result<UserContext, Errno> {
        let mut at = 0;
        loop {
            // Out of the lock before it is dropped.
            let closing = process.descriptors.lock().take_closing(&mut at);
            if closing.is_none() {
                break;
            }
        }
        process.space.clear();
        process.forget_completions();
        process.set_name(crate::trace::short_name(&self.path));
        self.load(&process.space, &process.shared)
    }

    /// Starts the program in a new process.
    fn start(
        self,
        parent: u32,
        directory: Node,
        descriptors: Descriptors,
        default_priority: Priority,
        standing: Standing,
    ) -> Result<u32, Errno> {
        let mut context = None;
        let name = crate::trace::short_name(&self.path);
        let process = process::create(|id| {
            let space =
                Space::new(Limits::DEFAULT, interrupts::kind_of_processes()).map_err(|OutOfMemory| Errno::ENOMEM)?;
            let space = Arc::new(space);
            let shared = Shared::new()?;
            context = Some(self.load(&space, &shared)?);
            Ok(Process::new(id, parent, space, shared, descriptors, directory, default_priority, standing))
        })?;
        let id = process.id;
        process.set_name(name);
        let started = context.ok_or(Errno::ENOMEM).and_then(|context| Worker::start(&process, Box::new(context)));
        if let Err(error) = started {
            process::discard(&process);
            return Err(error);
        }
        Ok(id)
    }
}

/// The `spawn` call.
pub fn spawn(
    process: &Process,
    path: usize,
    arguments: usize,
    environment: usize,
    descriptors: usize,
    priority: usize,
) -> Result<usize, Errno> {
    let plan = Plan::read(process, path, arguments, environment)?;
    let mut inherited = Descriptors::default();
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
                // Without a list a child gets what there is of 0, 1 and 2.
                Err(error) if descriptors != 0 => return Err(error),
                Err(_) => {}
            }
        }
    }
    // All ones: as the caller. A child is never more important than its parent may be.
    let default_priority = match priority {
        usize::MAX => process.default_priority,
        number => Priority::new(u8::try_from(number).map_err(|_| Errno::EINVAL)?).ok_or(Errno::EINVAL)?,
    };
    let directory = process.directory.lock().clone();
    let default_priority = default_priority.limited_to(process.standing.ceiling());
    plan.start(process.id, directory, inherited, default_priority, process.standing.inherited()).map(|id| id as usize)
}

/// Starts the first process with the console as its descriptors 0, 1 and 2.
pub fn start_first(path: &str, arguments: Vec<Vec<u8>>) -> Result<(), Errno> {
    let environment = alloc::vec![b"PATH=/bin".to_vec(), b"HOME=/".to_vec()];
    let plan = Plan::new(&files::root_directory(), path.as_bytes().to_vec(), arguments, environment)?;
    let mut descriptors = Descriptors::default();
    let console = Arc::new(crate::file::OpenFile::console());
    for number in 0..3 {
        descriptors.replace(number, console.clone(), false)?;
    }
    plan.start(0, files::root_directory(), descriptors, Priority::DEFAULT, Standing::of_the_first())?;
    Ok(())
}
