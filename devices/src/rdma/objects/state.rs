//! The InfiniBand state table: which transitions a QP may make, and which attributes each of them needs and allows
//! (InfiniBand architecture specification, volume 1, 10.3.1 and 11.2.5.2).

use crate::rdma::wire::{Status, qp_mask, qp_type};

/// Type of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum QpKind {
    /// General services.
    Gsi = qp_type::GSI,
    /// Reliable connection.
    Rc = qp_type::RC,
    /// Unreliable connection.
    Uc = qp_type::UC,
    /// Unreliable datagram.
    Ud = qp_type::UD,
    /// The sending end of an extended reliable connection.
    XrcIni = qp_type::XRC_INI,
    /// The receiving end of an extended reliable connection.
    XrcTgt = qp_type::XRC_TGT,
}

impl QpKind {
    /// Whether such a QP has one peer, and no other.
    pub fn is_connected(self) -> bool {
        self.is_reliable() || self == QpKind::Uc
    }

    /// Whether its messages are acknowledged.
    pub fn is_reliable(self) -> bool {
        matches!(self, QpKind::Rc | QpKind::XrcIni | QpKind::XrcTgt)
    }
}

/// State of a QP. The number is the verbs'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// Takes nothing.
    #[default]
    Reset = 0,
    /// Takes receives.
    Init = 1,
    /// Receives messages.
    Rtr = 2,
    /// Sends too.
    Rts = 3,
    /// Begins no new send.
    Sqd = 4,
    /// Unconnected: the send queue failed.
    Sqe = 5,
    /// Flushes.
    Err = 6,
}

impl QpState {
    /// The state of that number.
    pub fn from_wire(number: u8) -> Option<Self> {
        [
            QpState::Reset,
            QpState::Init,
            QpState::Rtr,
            QpState::Rts,
            QpState::Sqd,
            QpState::Sqe,
            QpState::Err,
        ]
        .get(usize::from(number))
        .copied()
    }

    /// Whether messages from the peer are taken.
    pub fn receives(self) -> bool {
        matches!(
            self,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        )
    }
}

/// Attribute masks of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    required: u32,
    optional: u32,
}

const fn rule(required: u32, optional: u32) -> Option<Rule> {
    Some(Rule { required, optional })
}

/// The rule of a transition; None where there is no such transition.
fn transition(kind: QpKind, from: QpState, to: QpState) -> Option<Rule> {
    use qp_mask::*;
    match (from, to) {
        (_, QpState::Reset) | (_, QpState::Err) => return rule(0, 0),
        _ => {}
    }
    match kind {
        QpKind::Rc | QpKind::Uc | QpKind::XrcIni | QpKind::XrcTgt => {
            let reliable = |mask| if kind.is_reliable() { mask } else { 0 };
            // Of the end that asks, and of the one that answers.
            let asks = |mask| match kind {
                QpKind::Rc | QpKind::XrcIni => mask,
                _ => 0,
            };
            let answers = |mask| match kind {
                QpKind::Rc | QpKind::XrcTgt => mask,
                _ => 0,
            };
            match (from, to) {
                (QpState::Reset, QpState::Init) => rule(PKEY_INDEX | PORT | ACCESS, 0),
                (QpState::Init, QpState::Init) => rule(0, PKEY_INDEX | PORT | ACCESS),
                (QpState::Init, QpState::Rtr) => rule(
                    AV | PATH_MTU | DEST_QPN | RQ_PSN | answers(MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER),
                    ACCESS | PKEY_INDEX,
                ),
                (QpState::Rtr, QpState::Rts) => rule(
                    SQ_PSN | reliable(TIMEOUT) | asks(RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC),
                    CUR_STATE | ACCESS | answers(MIN_RNR_TIMER),
                ),
                (QpState::Rts, QpState::Rts) | (QpState::Sqd, QpState::Rts) => {
                    rule(0, CUR_STATE | ACCESS | answers(MIN_RNR_TIMER))
                }
                (QpState::Rts, QpState::Sqd) => rule(0, EN_SQD_ASYNC),
                (QpState::Sqd, QpState::Sqd) => rule(
                    0,
                    AV | ACCESS
                        | PKEY_INDEX
                        | reliable(PORT | TIMEOUT)
                        | asks(RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC)
                        | answers(MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER),
                ),
                (QpState::Sqe, QpState::Rts) if kind == QpKind::Uc => rule(0, CUR_STATE | ACCESS),
                _ => None,
            }
        }
        QpKind::Ud | QpKind::Gsi => {
            let ud = |mask| if kind == QpKind::Ud { mask } else { 0 };
            match (from, to) {
                (QpState::Reset, QpState::Init) => rule(PKEY_INDEX | QKEY | ud(PORT), 0),
                (QpState::Init, QpState::Init) => rule(0, PKEY_INDEX | QKEY | ud(PORT)),
                (QpState::Init, QpState::Rtr) => rule(0, PKEY_INDEX | QKEY),
                (QpState::Rtr, QpState::Rts) => rule(SQ_PSN, CUR_STATE | QKEY),
                (QpState::Rts, QpState::Rts)
                | (QpState::Sqd, QpState::Rts)
                | (QpState::Sqe, QpState::Rts) => rule(0, CUR_STATE | QKEY),
                (QpState::Rts, QpState::Sqd) => rule(0, EN_SQD_ASYNC),
                (QpState::Sqd, QpState::Sqd) => rule(0, PKEY_INDEX | QKEY),
                _ => None,
            }
        }
    }
}

/// Checks a transition and the attributes given with it.
///
/// # Errors
/// `BadState` when there is no such transition, `Invalid` when an attribute is missing or not allowed.
pub fn check_transition(kind: QpKind, from: QpState, to: QpState, mask: u32) -> Result<(), Status> {
    let rule = transition(kind, from, to).ok_or(Status::BadState)?;
    let allowed = rule.required | rule.optional | qp_mask::STATE;
    if mask & rule.required != rule.required || mask & !allowed != 0 {
        return Err(Status::Invalid);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [QpState; 7] = [
        QpState::Reset,
        QpState::Init,
        QpState::Rtr,
        QpState::Rts,
        QpState::Sqd,
        QpState::Sqe,
        QpState::Err,
    ];

    const KINDS: [QpKind; 6] = [
        QpKind::Gsi,
        QpKind::Rc,
        QpKind::Uc,
        QpKind::Ud,
        QpKind::XrcIni,
        QpKind::XrcTgt,
    ];

    #[test]
    fn a_reliable_connection_makes_these_transitions_and_no_others() {
        use QpState::*;
        let want = [
            (Reset, Init),
            (Init, Init),
            (Init, Rtr),
            (Rtr, Rts),
            (Rts, Rts),
            (Rts, Sqd),
            (Sqd, Rts),
            (Sqd, Sqd),
        ];
        for kind in KINDS.into_iter().filter(|kind| kind.is_reliable()) {
            let ways = STATES.iter().flat_map(|from| STATES.map(|to| (*from, to)));
            let found: Vec<_> = ways
                .filter(|(from, to)| transition(kind, *from, *to).is_some())
                .filter(|(_, to)| !matches!(to, Reset | Err))
                .collect();
            assert_eq!(found, want, "{kind:?}");
        }
    }

    #[test]
    fn the_ends_of_an_extended_connection_need_what_their_part_of_it_needs() {
        use QpState::*;
        use qp_mask::*;
        let rtr = AV | PATH_MTU | DEST_QPN | RQ_PSN;
        for (kind, to_rtr, to_rts) in [
            (
                QpKind::XrcIni,
                rtr,
                SQ_PSN | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC,
            ),
            (
                QpKind::XrcTgt,
                rtr | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
                SQ_PSN | TIMEOUT,
            ),
        ] {
            assert_eq!(check_transition(kind, Init, Rtr, STATE | to_rtr), Ok(()));
            assert_eq!(check_transition(kind, Rtr, Rts, STATE | to_rts), Ok(()));
        }
        let foreign = STATE | SQ_PSN | TIMEOUT | RETRY_CNT;
        let refused = check_transition(QpKind::XrcTgt, Rtr, Rts, foreign);
        assert_eq!(refused, Result::Err(Status::Invalid));
    }

    #[test]
    fn every_state_can_go_to_reset_and_err() {
        for kind in KINDS {
            for from in STATES {
                assert_eq!(check_transition(kind, from, QpState::Reset, 1), Ok(()));
                assert_eq!(check_transition(kind, from, QpState::Err, 1), Ok(()));
            }
        }
    }

    #[test]
    fn each_required_attribute_is_required_and_each_foreign_one_refused() {
        for kind in KINDS {
            for (from, to) in STATES.iter().flat_map(|f| STATES.map(|t| (*f, t))) {
                let Some(rule) = transition(kind, from, to) else {
                    assert_eq!(check_transition(kind, from, to, 1), Err(Status::BadState));
                    continue;
                };
                let full = rule.required | rule.optional | qp_mask::STATE;
                assert_eq!(check_transition(kind, from, to, full), Ok(()));
                for bit in (0..32).map(|n| 1_u32 << n) {
                    if rule.required & bit != 0 {
                        let without = check_transition(kind, from, to, full & !bit);
                        assert_eq!(without, Err(Status::Invalid));
                    }
                    if full & bit == 0 {
                        let with = check_transition(kind, from, to, full | bit);
                        assert_eq!(with, Err(Status::Invalid));
                    }
                }
            }
        }
    }
}
