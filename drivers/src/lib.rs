//! Device drivers without a kernel: UART, PLIC, APLIC, IMSIC.
#![no_std]
