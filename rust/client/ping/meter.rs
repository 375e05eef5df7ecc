// SPDX-License-Identifier: GPL-2.0

//! Measures the round trips of a control connection, and checks what they did.
//!
//! An atomic operation has to find the number that the one before it has left. What RDMA READs have
//! read has to be what was written: the first pattern, which is written before anything is
//! measured, or the second one, which is what measured RDMA WRITEs write. The answer to a message
//! has to have its contents, of which each byte differs in the next message.

#![forbid(unsafe_code)]

use kernel::{
    prelude::*,
    sync::Arc,
    time::{
        Instant,
        Monotonic, //
    },
};

use super::{
    datagrams::Datagrams,
    trips::{
        nanos_since,
        pattern,
        Measured,
        PingRequest,
        Trip,
        DATA_AT, //
    },
};
use crate::base::{
    errno::{
        EBADMSG,
        ENOTCONN,
        EOPNOTSUPP, //
    },
    sync, //
};
use crate::client::{
    control::ControlConnection,
    deadline::Deadline,
    operation::Operation, //
};
use crate::link::{
    channel::{
        Work,
        MESSAGES, //
    },
    failure::{
        fail,
        Failure, //
    },
};
use crate::proto::{
    Ping,
    ScratchReply, //
};
use crate::rdma::{
    device::Device,
    dma::{
        Direction,
        DmaBuffer,
        DmaMemory, //
    },
    wr::{
        atomic::{
            AtomicOp,
            AtomicResult,
            RemoteAtomic, //
        },
        RdmaOp,
        RemoteRange, //
    },
};

/// Where the numbers are in a scratch region that atomic operations change.
const CAS_AT: u32 = 0;
const FAA_AT: u32 = 64;

/// What an operation has of this host's memory while it is not under way.
#[derive(Default)]
struct Memory {
    read: Option<Operation>,
    write: Option<Operation>,
    number: Option<Operation>,
    /// An RDMA READ has succeeded.
    has_read: bool,
}

impl Memory {
    /// Returns the place of that of one kind of operations.
    fn of(&mut self, trip: Trip) -> &mut Option<Operation> {
        match trip {
            Trip::Read => &mut self.read,
            Trip::Write => &mut self.write,
            _ => &mut self.number,
        }
    }
}

/// What is known of a round trip that is under way.
#[derive(Clone, Copy)]
struct Started {
    at: Instant<Monotonic>,
    /// Of a ping.
    sequence: u32,
    /// What an atomic operation has to find.
    expected: u64,
}

/// Measures round trips.
pub(super) struct Meter {
    // Fields drop in this order: the connection last, which all else is on.
    scratch: Option<ScratchReply>,
    size: u32,
    moves_data: bool,
    /// By the index of the operation; as many as can be under way.
    memory: KVec<Memory>,
    started: KVec<Started>,
    datagrams: Option<Datagrams>,
    /// What the next compare and swap, and the next fetch and add, find.
    cas: u64,
    faa: u64,
    /// The contents that are written before anything is measured, and those that are measured.
    patterns: [KVec<u8>; 2],
    /// The contents of messages, in turn.
    messages: [KVec<u8>; 2],
    /// The second pattern was written.
    has_written: bool,
    connection: ControlConnection,
}

impl Meter {
    /// Makes one for what `request` asks for. May sleep.
    pub(super) fn new(
        connection: ControlConnection,
        (scratch, datagrams): (Option<ScratchReply>, Option<Datagrams>),
        request: &PingRequest,
    ) -> Result<Self, Failure> {
        let device = connection.channel().pd().device().clone();
        // The server's device may do what this host's does not ask for.
        let scratch = scratch.map(|scratch| ScratchReply {
            atomics: scratch.atomics && device.posts_atomics(false),
            ..scratch
        });
        let seed = sync::random_u64();
        let mut this = Self {
            connection,
            scratch,
            size: request.size,
            moves_data: scratch.is_some() && (request.has(Trip::Read) || request.has(Trip::Write)),
            memory: KVec::new(),
            started: KVec::new(),
            datagrams,
            cas: 0,
            faa: 0,
            patterns: [pattern(seed, request.size)?, pattern(!seed, request.size)?],
            messages: [
                pattern(seed, request.contents())?,
                pattern(!seed, request.contents())?,
            ],
            has_written: false,
        };
        for _ in 0..request.depth.max(1) {
            let mut memory = Memory::default();
            if this.moves_data {
                memory.read = Some(data(&device, this.size, None)?);
                let [_, second] = &this.patterns;
                memory.write = Some(data(&device, this.size, Some(second))?);
            }
            if this.scratch.is_some_and(|scratch| scratch.atomics) {
                let buffer = DmaBuffer::alloc(&device, NUMBER, Direction::FromDevice)?;
                memory.number = Some(Operation::Number(AtomicResult::new(buffer)?));
            }
            this.memory.push(memory, GFP_KERNEL)?;
            let started = Started {
                at: Instant::now(),
                sequence: 0,
                expected: 0,
            };
            this.started.push(started, GFP_KERNEL)?;
        }
        Ok(this)
    }

    /// Writes the first pattern to the scratch region, if RDMA operations are measured. May sleep.
    pub(super) fn prepare(&mut self) -> Result<(), Failure> {
        let Some(scratch) = self.scratch.filter(|_| self.moves_data) else {
            return Ok(());
        };
        let device = self.connection.channel().pd().device().clone();
        let [first, _] = &self.patterns;
        let operation = data(&device, self.size, Some(first))?;
        let remote = at(&scratch, DATA_AT);
        let channel = self.connection.channel();
        channel.post(0, Work::Rdma(RdmaOp::Write, remote), operation)?;
        self.take(Trip::Write, 0, Deadline::start()).map(drop)
    }

    /// Returns how many round trips of a kind can be under way at once.
    fn depth(&self, trip: Trip) -> usize {
        let depth = self.memory.len();
        match (trip, &self.scratch) {
            (Trip::Send, _) => depth.min(MESSAGES),
            // A device may do READs of no bytes one at a time only.
            (_, None) => 1,
            (_, Some(_)) => depth,
        }
    }

    /// Measures up to `count` round trips of a kind, as many at once as there may be, and adds them
    /// to `measured`. Begins none when one of `begins` and `goes_on` returns false; what is under
    /// way when `goes_on` does has one time together. Fails with `EOPNOTSUPP` if they are atomic
    /// operations, datagrams, or READs of no bytes, and one of the devices does none. May sleep.
    pub(super) fn run(
        &mut self,
        trip: Trip,
        count: usize,
        (begins, goes_on): (&dyn Fn() -> bool, &dyn Fn() -> bool),
        measured: &mut Measured,
    ) -> Result<(), Failure> {
        if trip == Trip::SendUd {
            let datagrams = self.datagrams.as_mut();
            let datagrams = datagrams.ok_or_else(|| fail!(EOPNOTSUPP, "there are no datagrams"))?;
            return datagrams.run(count, &|| begins() && goes_on(), measured);
        }
        let depth = self.depth(trip);
        let begin = Instant::<Monotonic>::now();
        let next = |index: usize| if index + 1 < depth { index + 1 } else { 0 };
        let (mut newest, mut oldest) = (0, 0);
        let (mut started, mut under_way) = (0, 0);
        let mut end = None;
        loop {
            while started < count && under_way < depth && begins() && goes_on() {
                if under_way == 0 && trip == Trip::Send {
                    self.connection.check_unasked()?;
                }
                self.start(trip, newest)?;
                newest = next(newest);
                started += 1;
                under_way += 1;
            }
            if under_way == 0 {
                break;
            }
            if end.is_none() && !goes_on() {
                end = Some(Deadline::start());
            }
            let nanos = self.finish(trip, oldest, end.unwrap_or_else(Deadline::start))?;
            measured.times.push(nanos, GFP_KERNEL)?;
            oldest = next(oldest);
            under_way -= 1;
        }
        measured.elapsed = measured.elapsed.saturating_add(nanos_since(begin));
        Ok(())
    }

    /// Begins a round trip. May sleep.
    fn start(&mut self, trip: Trip, index: usize) -> Result<(), Failure> {
        let mut started = Started {
            at: Instant::now(),
            sequence: 0,
            expected: 0,
        };
        match (trip, self.scratch) {
            (Trip::Send, _) => started.sequence = self.send_ping()?,
            (Trip::Read, None) => {
                let work = Work::Nothing(RdmaOp::Read);
                self.post(index, work, Operation::Nothing)?;
            }
            (Trip::Read, Some(scratch)) => {
                let work = Work::Rdma(RdmaOp::Read, at(&scratch, DATA_AT));
                self.post_own(trip, index, work)?;
            }
            (Trip::Write, Some(scratch)) => {
                let work = Work::Rdma(RdmaOp::Write, at(&scratch, DATA_AT));
                self.post_own(trip, index, work)?;
                self.has_written = true;
            }
            (Trip::Cas, Some(scratch)) if scratch.atomics => {
                let compare = self.cas;
                let swap = compare.wrapping_add(1);
                let remote = RemoteAtomic::new(at(&scratch, CAS_AT))?;
                let work = Work::Atomic(AtomicOp::CompareSwap { compare, swap }, remote);
                self.post_own(trip, index, work)?;
                (started.expected, self.cas) = (compare, swap);
            }
            (Trip::Faa, Some(scratch)) if scratch.atomics => {
                let remote = RemoteAtomic::new(at(&scratch, FAA_AT))?;
                self.post_own(trip, index, Work::Atomic(AtomicOp::FetchAdd(1), remote))?;
                started.expected = self.faa;
                self.faa = self.faa.wrapping_add(1);
            }
            (_, Some(_)) => return Err(fail!(EOPNOTSUPP, "the server's device does none")),
            (_, None) => return Err(fail!(EINVAL, "there is no scratch region")),
        }
        if let Some(place) = self.started.get_mut(index) {
            *place = started;
        }
        Ok(())
    }

    /// Waits until the oldest round trip is over, checks it, and returns its nanoseconds. May
    /// sleep.
    fn finish(&mut self, trip: Trip, index: usize, deadline: Deadline) -> Result<u64, Failure> {
        let started = *self.started.get(index).ok_or(EINVAL)?;
        if trip == Trip::Send {
            return self.await_pong(&started, deadline);
        }
        let operation = self.take(trip, index, deadline)?;
        let nanos = nanos_since(started.at);
        if let Operation::Number(result) = &operation {
            let (found, expected) = (result.value().ok_or(EINVAL)?, started.expected);
            if found != expected {
                return Err(fail!(
                    EBADMSG,
                    "{} has found {found}, and the one before it had left {expected}",
                    name(trip)
                ));
            }
        }
        if let (Some(memory), false) = (
            self.memory.get_mut(index),
            matches!(operation, Operation::Nothing),
        ) {
            *memory.of(trip) = Some(operation);
            memory.has_read |= trip == Trip::Read;
        }
        Ok(nanos)
    }

    /// Sends a message with the contents of the next sequence number, and returns that. May sleep.
    fn send_ping(&mut self) -> Result<u32, Failure> {
        let contents = contents(&self.messages, self.connection.next_sequence());
        self.connection
            .send_ping(Ping { contents }, Deadline::start())
    }

    /// Waits for the answer to a message, checks it, and returns the nanoseconds. May sleep.
    fn await_pong(&mut self, started: &Started, deadline: Deadline) -> Result<u64, Failure> {
        let sequence = started.sequence;
        let contents = contents(&self.messages, sequence);
        let answer = self.connection.await_pong((sequence, contents), deadline)?;
        let nanos = nanos_since(started.at);
        match answer == contents {
            true => Ok(nanos),
            false => Err(fail!(
                EBADMSG,
                "the answer to a message has other contents than the message"
            )),
        }
    }

    /// Posts an operation.
    fn post(&mut self, index: usize, work: Work, operation: Operation) -> Result {
        let index = u16::try_from(index)?;
        self.connection.channel().post(index, work, operation)
    }

    /// Posts an operation that uses memory of this host.
    fn post_own(&mut self, trip: Trip, index: usize, work: Work) -> Result {
        let memory = self.memory.get_mut(index).ok_or(EINVAL)?;
        let operation = memory.of(trip).take().ok_or(EBUSY)?;
        self.post(index, work, operation)
    }

    /// Waits until an operation is over, and returns it. May sleep.
    fn take(&mut self, trip: Trip, index: usize, deadline: Deadline) -> Result<Operation, Failure> {
        let index = u16::try_from(index).map_err(|_| EINVAL)?;
        let channel = self.connection.channel_mut();
        let name = name(trip);
        let outcome = match channel.take_operation(index, deadline.left()) {
            Ok((operation, Ok(()))) => return Ok(operation),
            Ok((_, Err(error))) => error.to_error(),
            Err(error) => error,
        };
        match outcome {
            ETIMEDOUT => Err(fail!(outcome, "no answer to {name}")),
            ENOTCONN => Err(fail!(outcome, "the connection was lost during {name}")),
            _ => Err(fail!(outcome, "the server's device refused {name}")),
        }
    }

    /// Checks what was read and written. May sleep.
    pub(super) fn verify(&mut self) -> Result<(), Failure> {
        if !self.moves_data {
            return Ok(());
        }
        let [first, second] = &self.patterns;
        for (index, memory) in self.memory.iter().enumerate() {
            if !memory.has_read {
                continue;
            }
            let read = self.contents(index)?;
            // It may have read before the second one was written.
            let is_second = self.has_written && read.as_slice() == second.as_slice();
            if !is_second && read.as_slice() != first.as_slice() {
                return Err(fail!(EBADMSG, "an RDMA READ has not got what was written"));
            }
        }
        self.start(Trip::Read, 0)?;
        self.finish(Trip::Read, 0, Deadline::start())?;
        let last = self.contents(0)?;
        let [first, second] = &self.patterns;
        let written = if self.has_written { second } else { first };
        match last.as_slice() == written.as_slice() {
            true => Ok(()),
            false => Err(fail!(
                EBADMSG,
                "the server's memory has not what was written"
            )),
        }
    }

    /// Returns what was read by an operation. May sleep.
    fn contents(&self, index: usize) -> Result<KVec<u8>> {
        let mut bytes = KVec::from_elem(0, usize::try_from(self.size)?, GFP_KERNEL)?;
        match self
            .memory
            .get(index)
            .and_then(|memory| memory.read.as_ref())
        {
            Some(Operation::Data(piece)) => piece.contents(self.size)?.read(&mut bytes)?,
            _ => return Err(EINVAL),
        }
        Ok(bytes)
    }
}

/// The bytes of the result of an atomic operation.
const NUMBER: usize = 8;

/// Makes memory for an RDMA operation of `size` bytes, which has `contents` or zeroes. May sleep.
fn data(device: &Arc<Device>, size: u32, contents: Option<&[u8]>) -> Result<Operation> {
    let len = usize::try_from(size)?;
    let piece = DmaMemory::alloc(device, len, device.numa_node())?.piece(0, len)?;
    if let Some(bytes) = contents {
        piece.contents(size)?.write(bytes)?;
    }
    Ok(Operation::Data(piece))
}

/// Returns the contents of the message with this sequence number.
fn contents([even, odd]: &[KVec<u8>; 2], sequence: u32) -> &[u8] {
    if sequence % 2 == 0 {
        even
    } else {
        odd
    }
}

/// Returns a place in a scratch region.
fn at(scratch: &ScratchReply, offset: u32) -> RemoteRange {
    RemoteRange {
        // The region ends within 64 bits, and the offset is inside.
        addr: scratch.addr.wrapping_add(offset.into()),
        rkey: scratch.rkey,
    }
}

/// Returns what the user reads of an operation.
fn name(trip: Trip) -> &'static str {
    match trip {
        Trip::Send => "a message",
        Trip::Read => "an RDMA READ",
        Trip::Write => "an RDMA WRITE",
        Trip::Cas => "an atomic compare and swap",
        Trip::Faa => "an atomic fetch and add",
        Trip::SendUd => "a datagram",
    }
}
