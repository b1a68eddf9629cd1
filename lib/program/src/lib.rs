//! Executable images: ELF files checked and reduced to what a loader needs.
#![no_std]
