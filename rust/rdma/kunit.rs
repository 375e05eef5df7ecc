// SPDX-License-Identifier: GPL-2.0

//! KUnit suites of the RDMA abstractions, and what they share: two queue pairs of one device,
//! connected to each other over the device's own address.

mod atomic;
mod beside;
mod broken;
mod chain;
mod cm;
mod cq;
mod credits;
mod device;
mod direct;
mod dma;
mod immediate;
mod mr;
mod owner;
mod owners;
mod pair;
mod peer;
mod qp;
mod remnant;
mod reply;
mod request;
mod rival;
mod srq;
mod uc;
mod ud;

use self::{
    owners::*,
    pair::*,
    rival::Rival, //
};
use crate::base::{
    memory::NumaNode,
    net::Net,
    scatterlist::{
        PageChunks,
        Segment,
        Segmented, //
    },
    sync::{
        new_irqsave_spinlock,
        Completion,
        IrqSaveSpinLock, //
    },
    workqueue::{
        OwnedQueue,
        ReleaseQueue, //
    }, //
};
use crate::bindings;
use crate::kunit::{
    check,
    skip, //
};
use crate::rdma::{
    client,
    cm::{
        CmError,
        CmEvents,
        CmId,
        ConnParam,
        ConnectRequest,
        Listen,
        Listener, //
    },
    cq::{
        AnyCq,
        Cq,
        Manual,
        PollContext, //
    },
    device::Device,
    dma::{
        Direction,
        DmaBuffer,
        DmaMemory,
        DmaPiece,
        SgMapping, //
    },
    mr::{
        Access,
        Mr, //
    },
    pd::Pd,
    qp::{
        Connected,
        Qp,
        QpCaps,
        QpHandler,
        Rc,
        Ulp, //
    },
    remnant::{
        DeviceObject,
        ObjectRef, //
    },
    request::{
        Ask,
        Carry,
        Reply,
        RequestCaps,
        RequestHandler,
        Requests,
        Undrained, //
    },
    srq::Srq,
    wc::{
        Received,
        WcError,
        Written, //
    },
    wr::{
        atomic::{
            AtomicOp,
            AtomicResult,
            RemoteAtomic, //
        },
        Announcement,
        RdmaOp,
        RecvBuffer,
        RecvOwner,
        RemoteRange,
        SendOwner,
        RECV_BUFFERS, //
    },
};
use core::net::SocketAddr;
use kernel::{
    impl_has_work,
    new_mutex,
    new_work,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    },
    time::{
        Instant,
        Monotonic, //
    },
    workqueue::{
        Work,
        WorkItem, //
    },
    ModuleMetadata, //
};

/// Where the far side of a [`Pair`] listens.
const PORT: u16 = 4719;
/// How long anything is waited for.
const TIMEOUT_MS: u32 = 10_000;
/// How long the device of a [`Pair`] waits for an acknowledgment: 4.096 us x 2^20 = 4.3 s.
const ACK_TIMEOUT: u8 = 20;

/// The parameters of all connections. A message that finds no receive is sent again for ever.
const PARAM: ConnParam<'_> = ConnParam {
    private_data: &[],
    retry_count: 6,
    rnr_retry_count: 7,
    responder_resources: 4,
    initiator_depth: 4,
};

/// The sizes of the queue pairs of most tests.
const CAPS: QpCaps = QpCaps {
    slots: 4,
    send_wr: 8,
    recv_wr: 4,
    sges: QpCaps::MAX_SGES,
    large: 0,
};

/// The IPv4 address of a device, if it has one.
fn address(device: &Device) -> Option<SocketAddr> {
    (0..16).find_map(|index| {
        let ip = device.gid(1, index).ok()?.to_ipv4_mapped()?;
        Some(SocketAddr::from((ip, PORT)))
    })
}

/// This module with another name: what the core shows must be that of the client's module.
struct TestsModule;

impl ModuleMetadata for TestsModule {
    const NAME: &'static CStr = c"farblk_kunit";

    #[cfg(not(kernel_7_2))]
    const THIS_MODULE: ThisModule = crate::LocalModule::THIS_MODULE;
}

/// The tests as a client of the RDMA core, for as long as [`with_device`] runs.
struct Tests;

client::rdma_client!(Tests);

impl client::Client for Tests {
    type OwnerModule = TestsModule;

    fn remove(&self, _device: &Arc<Device>) {}
}

/// Returns the devices, within [`with_device`].
fn devices() -> Result<Arc<client::Devices>> {
    // SAFETY: `with_device()`, which runs one test at a time, has the registration.
    unsafe { <Tests as client::Registered>::slot().devices() }.ok_or(ENODEV)
}

/// Returns a device and its address, within [`with_device`].
fn some_device() -> Result<(Arc<Device>, SocketAddr)> {
    devices()?.find(address).ok_or(ENODEV)
}

/// Runs a test with a device and its address; skips it if there is none. The test must leave
/// nothing of the device.
fn with_device(test: impl FnOnce(&Arc<Device>, SocketAddr) -> Result) -> Result {
    let release = ReleaseQueue::new(c"farblk_kunit_release")?;
    let _registration = client::Registration::new(Tests, release.handle())?;
    match some_device() {
        Ok((device, addr)) => test(&device, addr),
        Err(_) => {
            skip(c"there is no RDMA device with an IPv4 address");
            Ok(())
        }
    }
}

/// Runs a test with a connected pair, and checks that every owner is dropped once at its end.
fn with_pair(caps: impl Into<RequestCaps>, test: impl FnOnce(Pair) -> Result) -> Result {
    with_pair_of(caps, Kind::default(), test)
}

/// Like [`with_pair`], with a pair of another kind.
fn with_pair_of(
    caps: impl Into<RequestCaps>,
    kind: Kind,
    test: impl FnOnce(Pair) -> Result,
) -> Result {
    with_device(|_, addr| {
        let pair = Pair::new(addr, caps, kind)?;
        let alive = pair.alive.clone();
        test(pair)?;
        check!(alive.load(Relaxed) == 0);
        Ok(())
    })
}

/// Returns the number of pieces of memory that a work request chain of `pair` takes, at most
/// `wanted`: devices with few segments per work request take fewer.
fn most_pieces(pair: &Pair, wanted: usize) -> usize {
    wanted.min(pair.near.qp.max_segments() as usize)
}

/// A counted reference.
trait Counted {
    /// Drops it. Returns true if it was the last.
    fn drop_last(self) -> bool;
}

impl<T> Counted for Arc<T> {
    fn drop_last(self) -> bool {
        Arc::into_unique_or_drop(self).is_some()
    }
}

impl<T: DeviceObject> Counted for ObjectRef<T> {
    fn drop_last(self) -> bool {
        ObjectRef::drop_last(self)
    }
}

/// Returns true if `reference` was the last, which it was dropped as if not.
fn last(reference: impl Counted) -> bool {
    reference.drop_last()
}

/// The error of a post, without the owner.
fn posted<T>(result: Result<(), (Error, T)>) -> Result {
    result.map_err(|(error, _)| error)
}

/// Waits until something is true.
fn wait_until(mut condition: impl FnMut() -> bool) -> Result {
    let start = Instant::<Monotonic>::now();
    while !condition() {
        // A millisecond of sleep may last much longer.
        if start.elapsed().as_millis() > TIMEOUT_MS.into() {
            return Err(ETIMEDOUT);
        }
        // SAFETY: Tests may sleep.
        unsafe { bindings::msleep(1) };
    }
    Ok(())
}

/// Sleeps a little, for what should not happen.
fn a_while() {
    // SAFETY: Tests may sleep.
    unsafe { bindings::msleep(50) };
}
