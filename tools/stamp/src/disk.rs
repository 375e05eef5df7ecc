// SPDX-License-Identifier: GPL-2.0
//! The disk under test, and memory that is suitable for direct I/O.

use std::fs::{File, OpenOptions};
use std::io::{Result, Seek, SeekFrom};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::block::SIZE;

/// Something with blocks of [`SIZE`] bytes; I/O in several threads at a time.
pub trait Disk: Send + Sync {
    /// Reads blocks from `first` on.
    fn read(&self, first: usize, buffer: &mut [u8]) -> Result<()>;
    /// Writes blocks from `first` on.
    fn write(&self, first: usize, buffer: &[u8]) -> Result<()>;
    /// Makes what was written survive a power cut.
    fn flush(&self) -> Result<()>;
}

/// Of the architectures whose value is not this one, `open` refuses it.
#[cfg(not(any(target_arch = "aarch64", target_arch = "arm")))]
const O_DIRECT: i32 = 0o40000;
#[cfg(any(target_arch = "aarch64", target_arch = "arm"))]
const O_DIRECT: i32 = 0o200_000;

/// Opens a block device, or a file, for reading and writing; past the page cache if `direct`.
///
/// # Errors
///
/// Those of the system.
pub fn open(path: &Path, direct: bool) -> Result<File> {
    let flags = if direct { O_DIRECT } else { 0 };
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)
}

/// Number of whole blocks in a device or file.
///
/// # Errors
///
/// Those of the system.
pub fn blocks(mut file: &File) -> Result<u64> {
    Ok(file.seek(SeekFrom::End(0))? / SIZE as u64)
}

fn offset(first: usize) -> u64 {
    first as u64 * SIZE as u64
}

impl Disk for File {
    fn read(&self, first: usize, buffer: &mut [u8]) -> Result<()> {
        self.read_exact_at(buffer, offset(first))
    }

    fn write(&self, first: usize, buffer: &[u8]) -> Result<()> {
        self.write_all_at(buffer, offset(first))
    }

    fn flush(&self) -> Result<()> {
        self.sync_data()
    }
}

/// Bytes that begin at a multiple of [`SIZE`].
pub struct Buffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    /// Zeroes.
    pub fn new(length: usize) -> Self {
        let memory = vec![0; length + SIZE];
        let start = memory.as_ptr().align_offset(SIZE);
        Self {
            memory,
            start,
            length,
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..][..self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.length]
    }
}
