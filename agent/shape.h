// What the updates of a job hold, as this member's worker says when it attaches: its agent's gate compares those of others with it. Kept
// in DIR/shape.json, so that an agent that was started anew knows it before its worker is back.
#ifndef AGENT_SHAPE_H
#define AGENT_SHAPE_H
#include "agent/jobs.h"
#include "inter/service.h"

// said: {"elements": all parameters that travel, "fragments": [{"elements", "sha": hex}]}
void agent_shape_take(struct inter_service *s, const struct agent_jobrun *j, const char *dir,
                      const json_t *said);
// What was said before, from DIR/shape.json; nothing without one.
void agent_shape_recall(struct inter_service *s, const struct agent_jobrun *j, const char *dir);

#endif
