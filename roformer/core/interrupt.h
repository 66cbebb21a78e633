#pragma once

namespace roformer {

/// Ctrl-C (SIGINT) and SIGTERM: the first asks for an orderly end, which interrupted() tells; the second leaves at once
/// with exit status 130.
void catch_interrupts();
bool interrupted();

/// Thrown to leave work that has nothing to save yet.
struct Interrupted {};

/// Exit status of a run that was asked to end and did.
constexpr int interrupted_status = 130;

}  // namespace roformer
