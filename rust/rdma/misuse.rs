// SPDX-License-Identifier: GPL-2.0

//! What the types keep callers from doing: each line that ends in `//~` and the code of an error
//! must not compile. "tools/build misuse" compiles the module with this file, and compares. Other
//! lines show that the same is possible where it should be.
//!
//! What types do not keep callers from:
//!
//! - An atomic operation needs 8 bytes at a multiple of 8, and the right to them. Where they are,
//!   and their key, a peer tells as numbers, of which no type of this side knows more.
//!   [`RemoteAtomic::new`] checks the address when it is called (KUnit: `is_for_a_multiple_of_8`,
//!   and `at_another_address_changes_nothing` of what gets by). The right is the peer's region's
//!   ([`Mr::with_atomics`](crate::rdma::mr::Mr::with_atomics)), and its device checks it
//!   (`region_allows_them_only_when_asked_to`, `needs_the_right_to_the_region`). All are in
//!   `rdma/kunit/atomic.rs`.
//! - A handler need not look at the result of a completion. But what only a success gives is not
//!   there without one: a [`Received`] is in that result, and the result of an atomic operation and
//!   the key of a region are `None`. A `Result` that a function returns and nobody looks at is a
//!   warning (`unused_must_use`), which fails the build.

use crate::base::scatterlist::NoMemory;
use crate::rdma::{
    cm::{
        CmId,
        ConnParam, //
    },
    cq::{
        AnyCq,
        Cq,
        Direct,
        Manual,
        Softirq,
        Workqueue, //
    },
    dma::DmaBuffer,
    mr::Mr,
    pd::Pd,
    qp::{
        Qp,
        QpCaps,
        QpHandler,
        SendTo,
        Uc,
        Ud,
        Ulp,
        Unacknowledged, //
    },
    remnant::ObjectRef,
    request::{
        Carry,
        Reply,
        RequestCaps,
        RequestHandler,
        Requests,
        Undrained, //
    },
    wc::{
        datagram::Datagram,
        Received,
        WcError,
        WcStatus, //
    },
    wr::{
        atomic::{
            AtomicOp,
            AtomicResult,
            RemoteAtomic, //
        },
        RdmaOp,
        RemoteRange,
        SendOwner, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

fn read_on_uc<H: QpHandler<Uc>>(qp: &Qp<H, Uc>, remote: RemoteRange, owner: H::Send) {
    let _ = qp.rdma(0, RdmaOp::Read, remote, owner, true); //~ E0599
}

fn empty_read_on_uc<H: QpHandler<Uc>>(qp: &Qp<H, Uc>, owner: H::Send) {
    let _ = qp.rdma_nothing(0, RdmaOp::Read, owner, true); //~ E0599
}

fn request_on_uc<H: QpHandler<Uc>>(qp: &Qp<H, Uc>, owner: H::Send) {
    let _ = qp.request(0, Carry::Nothing, owner, |_, _| Ok(()), true); //~ E0599
}

fn answer_on_uc<H: QpHandler<Uc>>(qp: &Qp<H, Uc>, answer: Received<'_>) {
    let _ = qp.answered(0, answer, |_| true); //~ E0599
}

fn invalidation_on_uc<H: QpHandler<Uc>>(qp: &Qp<H, Uc>, reply: Reply, owner: H::Send) {
    let _ = qp.reply(0, reply, owner, true); //~ E0599
}

fn registration_on_uc<H: QpHandler<Uc>>(qp: &Qp<H, Uc>, owner: H::Send) {
    let _ = qp.reg_mr(0, owner, true); //~ E0599
}

fn atomic_on_uc<H: QpHandler<Uc>>(
    qp: &Qp<H, Uc>,
    op: AtomicOp,
    remote: RemoteAtomic,
    owner: H::Send,
) {
    let _ = qp.atomic(0, op, remote, owner, true); //~ E0599
}

fn atomic_on_ud<H: QpHandler<Ud>>(
    qp: &Qp<H, Ud>,
    op: AtomicOp,
    remote: RemoteAtomic,
    owner: H::Send,
) {
    let _ = qp.atomic(0, op, remote, owner, true); //~ E0599
}

fn atomic_anywhere<H: QpHandler>(qp: &Qp<H>, op: AtomicOp, remote: RemoteRange, owner: H::Send) {
    let _ = qp.atomic(0, op, remote, owner, true); //~ E0308
}

fn atomic_at_a_place_that_nobody_checked(remote: RemoteRange) -> RemoteAtomic {
    RemoteAtomic(remote) //~ E0423
}

fn atomic_at_a_place_that_was_checked<H: QpHandler>(
    qp: &Qp<H>,
    op: AtomicOp,
    remote: RemoteRange,
    owner: H::Send,
) -> Result {
    let _ = qp.atomic(0, op, RemoteAtomic::new(remote)?, owner, true);
    Ok(())
}

fn result_of_an_atomic_that_may_have_failed(result: &AtomicResult) -> u64 {
    result.value() //~ E0308
}

fn key_of_a_region_whose_registration_may_have_failed(mr: &Mr) -> RemoteRange {
    mr.remote() //~ E0308
}

fn acknowledgment_of_uc(id: &CmId<Uc>) {
    let _ = id.set_ack_timeout(14); //~ E0599
    let _ = id.set_min_rnr_timer(1); //~ E0599
}

fn uc_on_another_id<H: QpHandler<Uc>>(
    id: &Arc<CmId>,
    pd: &Arc<Pd>,
    cq: &ObjectRef<AnyCq>,
    handler: H,
) {
    let _ = Qp::<H, Uc>::create(id, pd, cq, cq, QpCaps::default(), handler); //~ E0308
}

fn reap_where_the_core_does(softirq: &Cq<Softirq>, workqueue: &Cq<Workqueue>) {
    let _ = softirq.reap(); //~ E0624
    let _ = softirq.poll(1); //~ E0624
    let _ = workqueue.reap(); //~ E0624
    softirq.arm(); //~ E0624
}

fn interrupts_of_a_queue_without(direct: &Cq<Direct>, any: &AnyCq) {
    let _ = direct.arm(); //~ E0624
    let _ = direct.try_reap(); //~ E0624
    let _ = any.reap(); //~ E0624
}

fn what_is_polled(direct: &Cq<Direct>, manual: &Cq<Manual>) {
    let _ = (direct.reap(), direct.poll(1));
    let _ = (manual.reap(), manual.try_reap(), manual.arm());
}

fn delivery_by_uc(result: Result<Unacknowledged, WcError>) -> Result<(), WcError> {
    result //~ E0308
}

fn delivery_by_rc(result: Result<(), WcError>) {
    result //~ E0308
}

fn completion_as_success(result: Result<(), WcError>) -> bool {
    result //~ E0308
}

fn message_of_a_completion(result: Result<Received<'_>, WcError>) -> u32 {
    result.len() //~ E0599
}

fn status_of_a_success() -> WcStatus {
    WcStatus::SUCCESS //~ E0599
}

struct TakesNoResult;

impl QpHandler for TakesNoResult {
    type Send = DmaBuffer;
    type Recv = DmaBuffer;
    type Ulp = ();

    fn send_done(&self, _: &Qp<Self>, _: DmaBuffer) {} //~ E0050

    fn recv_done(&self, _: &Qp<Self>, _: DmaBuffer, _: Received<'_>) {} //~ E0053

    fn error(&self) {}
}

fn what_both_have<H: QpHandler<Uc>, R: QpHandler>(
    uc: &Qp<H, Uc>,
    rc: &Qp<R>,
    remote: RemoteRange,
    owners: (H::Send, H::Send, R::Send, R::Send, R::Send),
) {
    let _ = uc.send(0, owners.0, false);
    let _ = uc.write(1, remote, owners.1, true);
    let _ = rc.send(0, owners.2, false);
    let _ = rc.write(1, remote, owners.3, true);
    let _ = rc.rdma(2, RdmaOp::Read, remote, owners.4, true);
}

fn read_on_ud<H: QpHandler<Ud>>(qp: &Qp<H, Ud>, remote: RemoteRange, owner: H::Send) {
    let _ = qp.rdma(0, RdmaOp::Read, remote, owner, true); //~ E0599
}

fn write_on_ud<H: QpHandler<Ud>>(qp: &Qp<H, Ud>, remote: RemoteRange, owner: H::Send) {
    let _ = qp.write(0, remote, owner, true); //~ E0599
}

fn send_without_an_address<H: QpHandler<Ud>>(qp: &Qp<H, Ud>, owner: H::Send) {
    let _ = qp.send(0, owner, true); //~ E0599
}

fn owner_without_an_address<H: QpHandler<Ud>>(qp: &Qp<H, Ud>, owner: H::Send) {
    let _ = qp.send_to(0, None, owner, true); //~ E0599
}

struct Undirected(DmaBuffer);

impl SendOwner for Undirected {
    type Memory = NoMemory;
}

impl SendTo for Undirected {} //~ E0046

fn owner_with_an_address<H: QpHandler<Ud>>(qp: &Qp<H, Ud>, owner: H::Send)
where
    H::Send: SendTo,
{
    let _ = qp.send_to(0, None, owner, true);
}

fn address_on_rc<H: QpHandler>(qp: &Qp<H>, owner: H::Send) {
    let _ = qp.send_to(0, None, owner, true); //~ E0599
}

fn connection_of_datagrams(id: &CmId<Ud>, param: &ConnParam<'_>) {
    let _ = id.connect(param, 1000); //~ E0599
    id.disconnect(); //~ E0599
}

fn service_of_a_connection(id: &CmId) {
    let _ = id.find(&[], 1000); //~ E0599
}

fn request_of_plain_verbs<H: QpHandler<Ulp = ()>>(qp: &Qp<H>, owner: H::Send) {
    let _ = qp.request(0, Carry::Nothing, owner, |_, _| Ok(()), true); //~ E0599
}

fn answer_to_plain_verbs<H: QpHandler<Ulp = ()>>(qp: &Qp<H>, answer: Received<'_>) {
    let _ = qp.answered(0, answer, |_| true); //~ E0599
    let _ = qp.invalidations(); //~ E0599
}

fn reply_of_plain_verbs<H: QpHandler<Ulp = ()>>(qp: &Qp<H>, reply: Reply, owner: H::Send) {
    let _ = qp.reply(0, reply, owner, true); //~ E0599
}

fn regions_of_plain_verbs<H: QpHandler<Ulp = ()>>(
    id: &Arc<CmId>,
    pd: &Arc<Pd>,
    cq: &ObjectRef<AnyCq>,
    caps: RequestCaps,
    handler: H,
) {
    let _ = Qp::create(id, pd, cq, cq, caps, handler); //~ E0271
}

fn what_comes_back_of_plain_verbs<H: QpHandler<Ulp = ()>>(qp: &Qp<H>) -> Result<(), Undrained> {
    qp.drain() //~ E0308
}

fn a_ulp_of_uc<H: QpHandler<Uc>, U: Ulp<H, Uc>>() {}

fn requests_over_uc<H: QpHandler<Uc, Ulp = ()>>() {
    a_ulp_of_uc::<H, Requests>(); //~ E0277
    a_ulp_of_uc::<H, ()>();
}

fn what_requests_have<H: RequestHandler>(qp: &Qp<H>, answer: Received<'_>, owner: H::Send) {
    let _ = qp.request(0, Carry::Nothing, owner, |_, _| Ok(()), true);
    let _ = qp.answered(0, answer, |_| true);
    let _: Result<(), _> = qp.drain();
}

fn datagram_as_a_message(datagram: Datagram<'_>) -> Received<'_> {
    datagram //~ E0308
}
