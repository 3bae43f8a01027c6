#include "comm/collective/event_ticket.h"

#include <utility>

namespace scaletrain {

namespace {

class EventTicket final : public Ticket::State {
 public:
  explicit EventTicket(Event event) : event_(std::move(event)) {}

  void before(Stream& stream) override { stream.after(event_); }
  void wait() override { event_.wait(); }

 private:
  Event event_;
};

}  // namespace

Ticket ticket_of(Event event) {
  return event.is_done() ? Ticket() : Ticket(std::make_unique<EventTicket>(std::move(event)));
}

}  // namespace scaletrain
