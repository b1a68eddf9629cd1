//! Boards as data: `boards/*.toml` lists the machines and QEMU's arguments for them.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Deserialize;

use crate::device_tree;
use crate::workspace::write_if_changed;

/// The interrupt controller of a machine.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// APLIC and IMSIC.
    Aia,
    /// The older PLIC.
    Plic,
    /// As `aia`, with user-level interrupts (N and UIPI) and their controller UINTC: an emulator of our own.
    Uintc,
}

impl fmt::Display for Variant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Variant::Aia => "aia",
            Variant::Plic => "plic",
            Variant::Uintc => "uintc",
        })
    }
}

/// A board file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Board {
    /// The file's own name, without extension.
    pub name: String,
    /// One line for people.
    #[serde(rename = "description")]
    _description: String,
    /// QEMU's program and arguments.
    pub qemu: Qemu,
    /// Values for an empty command line.
    pub defaults: Defaults,
    machines: BTreeMap<Variant, MachineArguments>,
    devices: Vec<Device>,
    /// Parts of other boards that this one does not have.
    #[serde(default)]
    pub lacks: Vec<Equipment>,
    /// The folder of the file.
    #[serde(skip)]
    folder: PathBuf,
    /// The device tree, compiled.
    #[serde(skip)]
    device_tree: PathBuf,
}

/// A part of a machine that tests need.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Equipment {
    /// Disks.
    Disk,
    /// A clock that goes on while the machine is off.
    Clock,
    /// A source of random bytes, so that a seed is on the kernel's command line.
    Seed,
    /// A first hart that runs the kernel, for QEMU's gdb stub.
    FirstHart,
}

impl Equipment {
    /// Returns its name, as on the command line of the tests.
    pub fn name(self) -> &'static str {
        match self {
            Equipment::Disk => "disk",
            Equipment::Clock => "clock",
            Equipment::Seed => "seed",
            Equipment::FirstHart => "first-hart",
        }
    }
}

/// QEMU's program and arguments.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Qemu {
    /// The program.
    pub program: String,
    arguments: Vec<String>,
    counting_instructions: Vec<String>,
    counting_slow_instructions: Vec<String>,
    waiting_for_gdb: Vec<String>,
    /// Arguments for each disk.
    #[serde(default)]
    disk: Vec<String>,
    /// Arguments for a folder of this host.
    #[serde(default)]
    share: Vec<String>,
    /// Arguments for firmware in flash memory.
    #[serde(default)]
    flash: Vec<String>,
    /// Number of harts that the kernel cannot use, beside those that it can.
    #[serde(default)]
    other_harts: u8,
    /// Whether the machine cannot pass its status on, so that it is read from the console and QEMU is ended then.
    #[serde(default)]
    pub status_on_console: bool,
    /// Source of the device tree, beside the board file; QEMU makes one otherwise.
    device_tree: Option<PathBuf>,
}

/// Values for an empty command line.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Defaults {
    /// The interrupt controller.
    pub machine: Variant,
    /// Number of harts.
    pub harts: u8,
    /// Size of memory, with QEMU's suffixes.
    pub memory: String,
    /// Largest number of harts.
    #[serde(default = "eight")]
    maximum_harts: u8,
    /// Whether the board has this size of memory and no other.
    #[serde(default)]
    pub is_memory_fixed: bool,
}

fn eight() -> u8 {
    8
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineArguments {
    arguments: Vec<String>,
    /// Folder of the patches for QEMU that this machine needs, beside the board file.
    patches: Option<PathBuf>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Device {
    #[serde(rename = "name")]
    _name: String,
    arguments: Vec<String>,
}

/// The course of virtual time in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// With the host's time, one host thread for each hart.
    Host,
    /// With each instruction, a nanosecond for one: slow, one host thread, repeatable.
    Instructions,
    /// With each instruction, eight nanoseconds for one, as on a small processor: for runs that take seconds of the
    /// machine's time.
    SlowInstructions,
}

/// Last byte of a card's hardware address, as QEMU chooses it.
pub const HARDWARE: u8 = 0x56;

/// The other end of the network card's cable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// QEMU's user network, with forwarded ports.
    #[default]
    User,
    /// QEMU's user network, which serves files of a directory by TFTP.
    Files {
        /// The directory.
        directory: PathBuf,
        /// The file that DHCP names.
        first: &'static str,
    },
    /// A UDP socket of QEMU on this host; each datagram is a frame.
    Frames {
        /// QEMU's port.
        card: u16,
        /// The port that it sends to.
        other: u16,
        /// Last byte of the card's hardware address.
        hardware: u8,
    },
}

/// One boot's choices.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// The interrupt controller.
    pub machine: Variant,
    /// Number of harts.
    pub harts: u8,
    /// Size of memory, with QEMU's suffixes.
    pub memory: String,
    /// The kernel's ELF file.
    pub kernel: PathBuf,
    /// The archive of files.
    pub initramfs: PathBuf,
    /// The kernel's command line.
    pub command_line: String,
    /// The network card's cable.
    pub network: Network,
    /// Forwarded ports.
    pub forwards: Vec<crate::guest::Forward>,
    /// The course of virtual time.
    pub clock: Clock,
    /// Port on which QEMU waits for gdb.
    pub gdb_port: Option<u16>,
    /// Images of the machine's disks, the first one's first.
    pub disks: Vec<PathBuf>,
    /// Number of requests that each disk answers in a second; as many as it can without one.
    pub disk_pace: Option<u32>,
    /// A folder of this host that the machine sees.
    pub share: Option<PathBuf>,
    /// Firmware in flash memory, which starts the kernel: its code, and a copy of its variables.
    pub flash: Option<[PathBuf; 2]>,
}

impl Configuration {
    /// Sets the clock. Where instructions are counted, programs are loaded at fixed addresses and the machine asks for
    /// no address, so that counts repeat.
    pub fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
        if clock != Clock::Host {
            self.fix_addresses();
            self.fix_network_address();
        }
    }

    /// Gives the machine the address that QEMU's user network expects, without asking its DHCP server.
    pub fn fix_network_address(&mut self) {
        self.command_line.insert_str(0, "ip=10.0.2.15::10.0.2.2:255.255.255.0::::10.0.2.3 ipv6.disable=1 ");
    }

    /// Makes the kernel load programs at fixed addresses.
    pub fn fix_addresses(&mut self) {
        self.command_line.insert_str(0, "aslr=off ");
    }
}

impl Board {
    /// The board that commands are for, unless the user chooses another.
    pub const DEFAULT: &str = "qemu-virt";

    /// Returns whether it is that one.
    pub fn is_default(&self) -> bool {
        self.name == Board::DEFAULT
    }

    /// Reads a board file.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is not a board.
    pub fn load(file: &Path) -> Result<Board> {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let mut board = Board::parse(&text).with_context(|| format!("{} is not a board", file.display()))?;
        board.folder = file.parent().unwrap_or(Path::new("")).to_path_buf();
        Ok(board)
    }

    fn parse(text: &str) -> Result<Board> {
        let board: Board = toml::from_str(text)?;
        let default = board.defaults.machine;
        if !board.machines.contains_key(&default) {
            bail!("the machine `{default}`, its default, is missing");
        }
        Ok(board)
    }

    /// Returns the boards' names.
    ///
    /// # Errors
    ///
    /// The folder cannot be read.
    pub fn names(folder: &Path) -> Result<Vec<String>> {
        let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
        let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let boards = files.filter(|file| file.extension().is_some_and(|extension| extension == "toml"));
        let mut names: Vec<_> =
            boards.filter_map(|file| Some(file.file_stem()?.to_string_lossy().into_owned())).collect();
        names.sort();
        Ok(names)
    }

    /// Compiles the device tree, if the board has one of its own, into this folder.
    ///
    /// # Errors
    ///
    /// The source is wrong, or a file cannot be read or written.
    pub fn compile_device_tree(&mut self, folder: &Path) -> Result<()> {
        let Some(source) = self.qemu.device_tree.as_ref().map(|source| self.folder.join(source)) else { return Ok(()) };
        let text = std::fs::read_to_string(&source).with_context(|| format!("cannot read {}", source.display()))?;
        let tree = device_tree::compile(&text).with_context(|| format!("{} is no device tree", source.display()))?;
        self.device_tree = folder.join(&self.name).with_extension("dtb");
        write_if_changed(&self.device_tree, &tree).map(drop)
    }

    /// Checks that the board has what the user has chosen.
    ///
    /// # Errors
    ///
    /// It has another; the message says what.
    pub fn check(&self, machine: Option<Variant>, harts: Option<u8>, memory: Option<&str>) -> Result<()> {
        let name = &self.name;
        if let Some(machine) = machine
            && !self.machines.contains_key(&machine)
        {
            let machines: Vec<_> = self.machines.keys().map(ToString::to_string).collect();
            bail!("the board `{name}` has no machine `{machine}`; it has: {}", machines.join(", "));
        }
        let most = self.defaults.maximum_harts;
        if harts.is_some_and(|harts| harts > most) {
            bail!("the board `{name}` has {most} harts at most");
        }
        let fixed = &self.defaults.memory;
        if self.defaults.is_memory_fixed && memory.is_some_and(|memory| memory != fixed) {
            bail!("the board `{name}` has {fixed} of memory, neither more nor less");
        }
        Ok(())
    }

    /// Returns whether the board has this kind of machine.
    pub fn has(&self, machine: Variant) -> bool {
        self.machines.contains_key(&machine)
    }

    /// Returns the folder of the patches for QEMU that a machine needs; `None` where the host's QEMU has the machine.
    pub fn patches(&self, machine: Variant) -> Option<PathBuf> {
        self.machines.get(&machine)?.patches.as_ref().map(|folder| self.folder.join(folder))
    }

    /// Returns this board with a machine that has the PLIC, and all else that it has.
    pub fn with_plic(mut self, machine: Variant) -> Board {
        if let Some(machine) = self.machines.get_mut(&machine) {
            // QEMU takes several of these options together.
            machine.arguments.extend(["-machine".into(), "aia=none".into()]);
        }
        self
    }

    /// Returns QEMU's arguments for a machine, with placeholders.
    pub fn templates(&self, machine: Variant) -> impl Iterator<Item = &String> {
        let devices = self.devices.iter().flat_map(|device| &device.arguments);
        // A machine that the user has chosen was checked.
        let machine = self.machines.get(&machine).into_iter().flat_map(|machine| &machine.arguments);
        machine.chain(&self.qemu.arguments).chain(devices)
    }

    /// Returns the word of the command line with a seed for random numbers, where nothing else gives one: random, or
    /// the same each time where instructions are counted.
    fn seed(&self, clock: Clock) -> String {
        if !self.lacks.contains(&Equipment::Seed) {
            return String::new();
        }
        let mut seed = [0; 32];
        if clock == Clock::Host
            && let Ok(mut random) = std::fs::File::open("/dev/urandom")
        {
            // Without random bytes on this host the seed is as it is for counting.
            let _ = random.read_exact(&mut seed);
        }
        let digits: String = seed.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("seed={digits} ")
    }

    /// Returns QEMU's arguments for one boot.
    pub fn arguments(&self, configuration: &Configuration) -> Vec<String> {
        let clock = match configuration.clock {
            Clock::Host => &[][..],
            Clock::Instructions => &self.qemu.counting_instructions,
            Clock::SlowInstructions => &self.qemu.counting_slow_instructions,
        };
        let gdb = if configuration.gdb_port.is_some() { &self.qemu.waiting_for_gdb[..] } else { &[] };
        let all = self.templates(configuration.machine).chain(clock).chain(gdb);

        let network = match &configuration.network {
            Network::User => configuration.forwards.iter().fold("user".to_string(), |options, forward| {
                format!("{options},hostfwd=tcp:127.0.0.1:{}-:{}", forward.host, forward.guest)
            }),
            Network::Files { directory, first } => {
                format!("user,tftp={},bootfile={first}", directory.to_string_lossy().replace(',', ",,"))
            }
            Network::Frames { card, other, .. } => {
                let end = |name, port| format!(",{name}.type=inet,{name}.host=127.0.0.1,{name}.port={port}");
                format!("dgram{}{}", end("local", card), end("remote", other))
            }
        };
        // QEMU separates the parts of an option by commas; a comma in a value is written twice, but -kernel, -initrd
        // and -append take their argument literally.
        let values = [
            ("{kernel}", configuration.kernel.to_string_lossy().into_owned()),
            ("{initramfs}", configuration.initramfs.to_string_lossy().into_owned()),
            ("{command_line}", self.seed(configuration.clock) + &configuration.command_line),
            ("{harts}", configuration.harts.to_string()),
            ("{all_harts}", (configuration.harts + self.qemu.other_harts).to_string()),
            ("{device_tree}", self.device_tree.to_string_lossy().into_owned()),
            ("{memory}", configuration.memory.clone()),
            ("{network}", network),
            ("{hardware_address}", hardware_address(&configuration.network)),
            ("{gdb_port}", configuration.gdb_port.unwrap_or(0).to_string()),
        ];
        let disks = configuration.disks.iter().enumerate().flat_map(|(number, image)| {
            let image = image.to_string_lossy().replace(',', ",,");
            let pace = configuration.disk_pace.map(|pace| format!(",throttling.iops-total={pace}"));
            let values = [("{disk}", image), ("{number}", number.to_string()), ("{pace}", pace.unwrap_or_default())];
            self.qemu.disk.iter().map(move |argument| substitute(argument, &values))
        });
        let share = configuration.share.iter().flat_map(|folder| {
            let values = [("{folder}", folder.to_string_lossy().replace(',', ",,"))];
            self.qemu.share.iter().map(move |argument| substitute(argument, &values))
        });
        let flash = configuration.flash.iter().flat_map(|[code, variables]| {
            let quoted = |file: &Path| file.to_string_lossy().replace(',', ",,");
            let values = [("{code}", quoted(code)), ("{variables}", quoted(variables))];
            self.qemu.flash.iter().map(move |argument| substitute(argument, &values))
        });
        all.map(|argument| substitute(argument, &values)).chain(disks).chain(share).chain(flash).collect()
    }
}

/// Returns the hardware address of the network card.
fn hardware_address(network: &Network) -> String {
    let last = match network {
        Network::User | Network::Files { .. } => HARDWARE,
        Network::Frames { hardware, .. } => *hardware,
    };
    format!("52:54:00:12:34:{last:02x}")
}

/// Replaces the placeholders of a template. Values are not searched for placeholders.
fn substitute(template: &str, values: &[(&str, String)]) -> String {
    let mut result = String::new();
    let mut rest = template;
    while let Some(start) = rest.find('{') {
        result.push_str(&rest[..start]);
        rest = &rest[start..];
        match values.iter().find(|(name, _)| rest.starts_with(name)) {
            Some((name, value)) => {
                result.push_str(value);
                rest = &rest[name.len()..];
            }
            None => {
                result.push('{');
                rest = &rest[1..];
            }
        }
    }
    result + rest
}

/// Checks a memory size as QEMU takes it: a number with the suffix M or G.
///
/// # Errors
///
/// It has another form.
pub fn memory_size(text: &str) -> Result<String, String> {
    let number = text.strip_suffix(['M', 'G']).and_then(|number| number.parse::<u32>().ok());
    match number {
        Some(number) if number > 0 => Ok(text.to_string()),
        _ => Err("give a number and M or G, as in 512M".into()),
    }
}

/// Checks that a machine has room for its kernel and its archive, beside which QEMU and the kernel need some more.
///
/// # Errors
///
/// The memory is too small, or a file cannot be read.
pub fn check_room(configuration: &Configuration) -> Result<()> {
    /// For firmware, device tree, alignment, the kernel's tables and the first program.
    const BESIDE: u64 = 16 << 20;
    let size = |file: &Path| {
        std::fs::metadata(file).map(|file| file.len()).with_context(|| format!("cannot read {}", file.display()))
    };
    let needed = size(&configuration.kernel)? + size(&configuration.initramfs)? + BESIDE;
    let memory = memory_bytes(&configuration.memory);
    if memory < needed {
        let needed = needed.div_ceil(1 << 20).next_multiple_of(16);
        bail!(
            "{} of memory are too little for kernel and programs; give at least --memory {needed}M",
            configuration.memory
        );
    }
    Ok(())
}

/// Returns the bytes that [`memory_size`] has accepted.
fn memory_bytes(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.len().saturating_sub(1));
    number.parse::<u64>().unwrap_or(0) << if unit == "G" { 30 } else { 20 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::Forward;

    #[test]
    fn a_machine_without_room_for_its_files_is_refused_with_the_size_that_suffices() {
        let mut configuration = configuration();
        configuration.kernel = std::env::current_exe().unwrap();
        configuration.initramfs = configuration.kernel.clone();
        configuration.memory = "1M".into();
        let error = check_room(&configuration).unwrap_err().to_string();
        let enough = error.rsplit(' ').next().unwrap().to_string();
        configuration.memory = memory_size(&enough).unwrap();
        check_room(&configuration).unwrap();
        configuration.memory = "1G".into();
        check_room(&configuration).unwrap();
        configuration.initramfs = "/nowhere/at/all".into();
        assert!(check_room(&configuration).is_err());
    }

    fn board() -> Board {
        Board::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../boards/qemu-virt.toml")).unwrap()
    }

    #[test]
    fn a_machine_can_have_the_plic_instead_of_its_own_controller() {
        let configuration = Configuration { machine: Variant::Uintc, ..configuration() };
        let arguments = board().with_plic(Variant::Uintc).arguments(&configuration);
        let machine: Vec<_> = arguments.windows(2).filter(|pair| pair[0] == "-machine").map(|pair| &pair[1]).collect();
        assert_eq!(machine, ["virt,aia=aplic-imsic,aia-guests=3,uintc=on", "aia=none"]);
        let others = board().with_plic(Variant::Uintc).arguments(&self::configuration());
        assert!(!others.contains(&"aia=none".to_string()));
    }

    fn configuration() -> Configuration {
        Configuration {
            machine: Variant::Plic,
            harts: 3,
            memory: "256M".into(),
            kernel: "/a dir/kernel".into(),
            initramfs: "/x/{harts}".into(),
            command_line: "init=/bin/hello -- {memory} a b".into(),
            network: Network::default(),
            forwards: Vec::new(),
            clock: Clock::Host,
            flash: None,
            gdb_port: None,
            disks: Vec::new(),
            disk_pace: None,
            share: None,
        }
    }

    fn value_of<'a>(arguments: &'a [String], option: &str) -> Vec<&'a str> {
        arguments.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1].as_str()).collect()
    }

    #[test]
    fn placeholders_are_replaced_once() {
        let arguments = board().arguments(&configuration());
        assert_eq!(value_of(&arguments, "-smp"), ["3"]);
        assert_eq!(value_of(&arguments, "-m"), ["256M"]);
        assert_eq!(value_of(&arguments, "-kernel"), ["/a dir/kernel"]);
        assert_eq!(value_of(&arguments, "-initrd"), ["/x/{harts}"]);
        assert_eq!(value_of(&arguments, "-append"), ["init=/bin/hello -- {memory} a b"]);
        assert_eq!(value_of(&arguments, "-machine"), ["virt"]);
        assert_eq!(value_of(&arguments, "-netdev"), ["user,id=network0"]);
        assert!(!arguments.iter().any(|argument| argument == "-icount" || argument == "-S"));
    }

    #[test]
    fn variants_clock_forwards_and_gdb_are_choices() {
        let arguments = board().arguments(&Configuration {
            machine: Variant::Aia,
            clock: Clock::Instructions,
            forwards: vec![Forward { host: 5000, guest: 7000 }, Forward { host: 5001, guest: 80 }],
            gdb_port: Some(1234),
            ..configuration()
        });
        assert_eq!(value_of(&arguments, "-machine"), ["virt,aia=aplic-imsic,aia-guests=3"]);
        assert_eq!(value_of(&arguments, "-icount"), ["shift=0"]);
        assert_eq!(value_of(&arguments, "-gdb"), ["tcp:127.0.0.1:1234"]);
        assert_eq!(
            value_of(&arguments, "-netdev"),
            ["user,hostfwd=tcp:127.0.0.1:5000-:7000,hostfwd=tcp:127.0.0.1:5001-:80,id=network0"]
        );
        let network = Network::Frames { card: 6000, other: 6001, hardware: 0x0a };
        let arguments = board().arguments(&Configuration { network, ..configuration() });
        assert_eq!(
            value_of(&arguments, "-netdev"),
            [concat!(
                "dgram,local.type=inet,local.host=127.0.0.1,local.port=6000,",
                "remote.type=inet,remote.host=127.0.0.1,remote.port=6001,id=network0"
            )]
        );
        assert!(value_of(&arguments, "-device").contains(&"virtio-net-device,netdev=network0,mac=52:54:00:12:34:0a"));
    }

    #[test]
    fn disks_have_numbers_and_any_names() {
        let disks = vec!["/a dir/first,{disk}.img".into(), "second".into()];
        let arguments = board().arguments(&Configuration { disks, ..configuration() });
        assert_eq!(
            value_of(&arguments, "-drive"),
            ["file=/a dir/first,,{disk}.img,if=none,format=raw,id=disk0", "file=second,if=none,format=raw,id=disk1"]
        );
        assert!(value_of(&arguments, "-device").contains(&"virtio-blk-device,drive=disk1"));
    }

    #[test]
    fn a_folder_is_given_to_the_machine() {
        assert!(value_of(&board().arguments(&configuration()), "-fsdev").is_empty());
        let arguments = board().arguments(&Configuration { share: Some("/a,b".into()), ..configuration() });
        let [folder] = value_of(&arguments, "-fsdev")[..] else { panic!("one folder") };
        assert!(folder.starts_with("local,id=share,path=/a,,b,security_model=none"), "{folder}");
        assert!(value_of(&arguments, "-device").contains(&"virtio-9p-device,fsdev=share,mount_tag=host"));
    }

    #[test]
    fn a_board_without_a_machine_or_with_an_unknown_key_is_refused() {
        let text =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../boards/qemu-virt.toml")).unwrap();
        let without = text.replace("[machines.plic]", "[machines.aia2]");
        assert!(Board::parse(&without).is_err());
        let without =
            text.replace("machine = \"aia\"", "machine = \"plic\"").replace("[machines.plic]", "[machines.aia2]");
        assert!(Board::parse(&without).is_err());
        assert!(Board::parse(&format!("color = 1\n{text}")).is_err());
        assert!(Board::parse(&text.replace("harts = 4", "")).is_err());
    }

    #[test]
    fn every_board_has_its_own_name_and_a_command_line() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../boards");
        let names = Board::names(&folder).unwrap();
        assert_eq!(names, ["icicle", "qemu-virt", "qemu-virt-pci", "sifive-u"]);
        let output = std::env::temp_dir();
        for name in names {
            let mut board = Board::load(&folder.join(format!("{name}.toml"))).unwrap();
            assert_eq!(board.name, name);
            board.compile_device_tree(&output).unwrap();
            let machine = board.defaults.machine;
            board.check(Some(machine), Some(board.defaults.harts), Some(&board.defaults.memory)).unwrap();
            let arguments = board.arguments(&Configuration { machine, ..configuration() });
            let placeholders =
                ["{kernel}", "{all_harts}", "{network}", "{hardware_address}", "{device_tree}", "{disk}"];
            assert!(!arguments.iter().any(|argument| placeholders.iter().any(|name| argument.contains(name))));
            for tree in value_of(&arguments, "-dtb") {
                std::fs::remove_file(tree).unwrap();
            }
        }
    }

    #[test]
    fn a_board_refuses_what_it_does_not_have() {
        let load = |name: &str| {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../boards/{name}.toml"));
            Board::load(&file).unwrap()
        };
        let (board, fixed) = (load("sifive-u"), load("icicle"));
        let error = |machine, harts, memory| board.check(machine, harts, memory).unwrap_err().to_string();
        assert_eq!(error(Some(Variant::Aia), None, None), "the board `sifive-u` has no machine `aia`; it has: plic");
        assert_eq!(error(None, Some(5), None), "the board `sifive-u` has 4 harts at most");
        assert!(board.check(None, Some(4), Some("2G")).is_ok());
        let error = fixed.check(None, None, Some("2G")).unwrap_err().to_string();
        assert_eq!(error, "the board `icicle` has 1537M of memory, neither more nor less");
        assert!(fixed.check(None, None, Some("1537M")).is_ok());
        assert!(board.patches(Variant::Uintc).is_none() && !board.has(Variant::Uintc));
        // The harts that the kernel cannot use are there, too.
        let configuration = Configuration { machine: Variant::Plic, ..configuration() };
        assert_eq!(value_of(&board.arguments(&configuration), "-smp"), ["4"]);
        assert_eq!(
            value_of(&board.arguments(&configuration), "-nic"),
            ["user,model=cadence_gem,mac=52:54:00:12:34:56"]
        );
        // A seed, which counted instructions do not depend on.
        let line = |clock| {
            let arguments = board.arguments(&Configuration { clock, ..configuration.clone() });
            value_of(&arguments, "-append")[0].to_string()
        };
        let fixed = format!("seed={} init=/bin/hello -- {{memory}} a b", "00".repeat(32));
        assert_eq!(line(Clock::Instructions), fixed);
        assert_eq!(line(Clock::Host).len(), fixed.len());
        assert_ne!(line(Clock::Host), line(Clock::Host));
    }

    #[test]
    fn memory_sizes_are_those_of_qemu() {
        assert_eq!(memory_size("512M").unwrap(), "512M");
        for wrong in ["", "M", "512", "0M", "-1M", "1T", "512M,slots=2"] {
            assert!(memory_size(wrong).is_err(), "{wrong}");
        }
    }
}
