//! The scheduler as one position-independent image.
#![no_std]
