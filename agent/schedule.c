#include "agent/schedule.h"

int64_t agent_schedule_offset(const struct agent_schedule *s, int32_t f) {
    return (int64_t)f * s->interval / s->fragments;
}

bool agent_schedule_due(const struct agent_schedule *s, int32_t f, int64_t step) {
    return step > 0 && (step - agent_schedule_offset(s, f)) % s->interval == 0;
}

enum agent_decision agent_schedule_decide(const struct agent_schedule *s, const struct agent_fragment *frag, int32_t f,
                                          int64_t step, bool peers_alive, int64_t counted_miss) {
    bool last = step >= s->steps;
    if (frag->finished)
        return AGENT_GO_ON;
    if (frag->in_flight) {
        bool ripe = last || step >= frag->merge_step;
        if (ripe && frag->arrived)
            return AGENT_MERGE;
        if (last || (ripe && peers_alive))
            return AGENT_WAIT;
        bool due = agent_schedule_due(s, f, step) && step > frag->send_step;
        return due && counted_miss != step ? AGENT_MISS : AGENT_GO_ON;
    }
    if (last)
        return AGENT_SEND;
    return agent_schedule_due(s, f, step) && step > frag->send_step ? AGENT_SEND : AGENT_GO_ON;
}

bool agent_schedule_finished(const struct agent_schedule *s, const struct agent_fragment *frags, int64_t step) {
    if (step < s->steps)
        return false;
    for (int32_t f = 0; f < s->fragments; f++)
        if (!frags[f].finished)
            return false;
    return true;
}
