// SPDX-License-Identifier: GPL-2.0

//! What the types keep callers from doing: each line that ends in `//~` and the code of an error
//! must not compile. "tools/build misuse" compiles the module with this file, and compares. Other
//! lines show that the same is possible where it should be.

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
        WcError, //
    },
    wr::{
        atomic::{
            AtomicOp,
            RemoteAtomic, //
        },
        RdmaOp,
        RemoteRange, //
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
    let _ = qp.answered(0, answer); //~ E0599
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
    let _ = qp.answered(0, answer); //~ E0599
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
    let _ = qp.answered(0, answer);
    let _: Result<(), _> = qp.drain();
}

fn datagram_as_a_message(datagram: Datagram<'_>) -> Received<'_> {
    datagram //~ E0308
}
