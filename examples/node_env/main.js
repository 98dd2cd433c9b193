import { serve } from './server.js';
import { NodeEnv } from './env.js';

serve([NodeEnv], { port: 8080 });
