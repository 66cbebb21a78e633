#include "roformer/core/interrupt.h"

#include <unistd.h>

#include <csignal>

namespace roformer {
namespace {

volatile std::sig_atomic_t interrupt_count = 0;

void on_interrupt(int) {
  interrupt_count = interrupt_count + 1;
  if (interrupt_count > 1) _exit(interrupted_status);
}

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // no SA_RESTART: a waiting parent wakes up
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);  // a file-size limit becomes a failed write, which is reported
}

bool interrupted() { return interrupt_count > 0; }

}  // namespace roformer
