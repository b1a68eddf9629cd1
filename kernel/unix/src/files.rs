//! Objects behind descriptors: open files of each kind, the tables of descriptors, and readiness of many files.
//!
//! Files with contents are in the `filesystem` library, sockets in [`network`](crate::network).

pub(crate) mod byte_queue;
pub(crate) mod carriers;
pub(crate) mod cleaning;
pub(crate) mod console;
pub(crate) mod descriptor;
pub(crate) mod devices;
pub(crate) mod disk;
pub(crate) mod disk_file;
pub(crate) mod epoll;
pub(crate) mod event_counter;
pub(crate) mod fifo;
pub(crate) mod file;
pub(crate) mod file_events;
pub(crate) mod gathered;
pub(crate) mod generated;
pub(crate) mod host_folder;
pub(crate) mod job_control;
pub(crate) mod keyed;
pub(crate) mod line_discipline;
pub(crate) mod local_name;
pub(crate) mod local_socket;
pub(crate) mod locks;
pub(crate) mod machine_end;
pub(crate) mod message;
pub(crate) mod message_queue;
pub(crate) mod mounts;
pub(crate) mod owners;
pub(crate) mod pipe;
pub(crate) mod pipe_bytes;
pub(crate) mod pseudo_terminal;
pub(crate) mod remains;
pub(crate) mod root;
pub(crate) mod segments;
pub(crate) mod semaphores;
pub(crate) mod sent_files;
pub(crate) mod shared_memory;
pub(crate) mod stored;
pub(crate) mod terminal;
pub(crate) mod timer;
pub(crate) mod tree;
pub(crate) mod volume;
